"""Files that are whole or as they were, private folders, and the lock."""

import stat
import subprocess
import sys

import pytest

from catchment.errors import RunError, UserError
from catchment.files import FileLock, private_directories, private_directory, write_atomically

HOLDER = """
import sys
from pathlib import Path
from catchment.files import FileLock
with FileLock(Path(sys.argv[1]), "the test"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_file_is_written_whole_or_in_parts(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"whole")
    assert path.read_bytes() == b"whole"
    write_atomically(path, iter([b"in ", memoryview(b"parts")]))
    assert path.read_bytes() == b"in parts"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_writer_that_fails_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"before")

    def parts():
        yield b"aft"
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write_atomically(path, parts())
    assert path.read_bytes() == b"before"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path):
    with pytest.raises(RunError, match=r"nowhere/file cannot be written: No such file or directory; what was there"):
        write_atomically(tmp_path / "nowhere" / "file", b"")


def test_directories_are_for_their_owner_alone(tmp_path):
    private_directory(tmp_path / "one")
    private_directories(tmp_path / "two" / "three")
    for name in ("one", "two", "two/three"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700


def test_a_directory_that_is_there_keeps_its_mode(tmp_path):
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "open").chmod(0o755)
    private_directory(tmp_path / "open")
    private_directories(tmp_path / "open" / "below")
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "open" / "below").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["", "a.lock"])
def test_a_lock_is_held_once_and_can_be_had_again(tmp_path, name):
    path = tmp_path / name
    with FileLock(path, "at work"), pytest.raises(UserError) as refused:
        FileLock(path, "at work")
    assert str(refused.value) == f"{path} is in use: another process is at work"
    FileLock(path, "at work").close()


def test_a_lock_ends_with_its_process(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match="another process is the test"):
            FileLock(tmp_path, "the test")
        holder.kill()
    FileLock(tmp_path, "the test").close()


def test_closing_a_lock_twice_closes_nothing_else(tmp_path):
    lock = FileLock(tmp_path, "at work")
    lock.close()
    with (tmp_path / "other").open("w") as other:
        lock.close()
        other.write("still open")
    assert (tmp_path / "other").read_text() == "still open"
