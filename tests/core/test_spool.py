"""Rows in a file: what was put comes back, nothing is left behind, and memory does not grow with what is kept."""

import errno
import gc
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from catchment.core import spool as spools
from catchment.core.fleet import FleetSnapshot
from catchment.core.inflight import InFlightSnapshot
from catchment.core.spool import Scratch, Spool, on_disk
from catchment.core.transport import Snapshot
from catchment.errors import ProtocolError, RunError
from catchment.exchange.message import Message
from catchment.files import write_atomically
from catchment.runs.checkpoint import Checkpoints
from catchment.runs.state import fingerprint, flatten, streamed, unflatten

A = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
B = torch.tensor([[7.0, 8.0], [9.0, 10.0]])
linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")


@pytest.fixture(params=["mapped", "row by row"])
def spool(request, tmp_path, monkeypatch):
    """A new spool; small files are read through a mapping, large ones row by row."""
    if request.param == "row by row":
        monkeypatch.setattr(spools, "RESIDENT", 0)
    return Spool(tmp_path)


def disk(directory) -> int:
    """Bytes that this process keeps in files without a name in a directory."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            if os.readlink(link).startswith(str(directory)):
                status = link.stat()
                found[status.st_ino] = status.st_blocks * 512
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return sum(found.values())


# ---- putting and taking -----------------------------------------------------------------------------------------


def test_rows_are_numbered_through_the_keys_in_the_order_of_asking(spool):
    spool.put(9, A)
    spool.put(4, B)
    assert spool.keys() == [4, 9]
    assert len(spool) == 5
    assert (spool.count(9), spool.count(4)) == (3, 2)
    assert 4 in spool
    assert 5 not in spool
    assert spool.take([9, 4], torch.tensor([0, 4, 2, 3, 0])).tolist() == [[1, 2], [9, 10], [5, 6], [7, 8], [1, 2]]
    assert spool.take([4, 9], torch.tensor([0, 1, 2])).tolist() == [[7, 8], [9, 10], [1, 2]]
    assert spool.take([4], torch.tensor([1])).tolist() == [[9, 10]]
    assert torch.equal(spool.rows(9), A)
    assert torch.equal(spool.rows(4), B)


def test_what_is_taken_is_a_copy(spool):
    spool.put(0, A)
    spool.take([0], torch.tensor([0, 1])).zero_()
    assert torch.equal(spool.rows(0), A)


def test_as_many_rows_replace_the_old_ones_in_place(spool):
    spool.put(0, A)
    spool.put(1, B)
    spool.put(0, A[:1])  # leaves a gap before the rows of 1, which stay where they are
    view = spool.rows(1)
    spool.put(1, -B)
    assert torch.equal(view, -B)
    assert torch.equal(spool.take([0, 1], torch.arange(3)), torch.cat([A[:1], -B]))
    assert spool._scratch.size == 5 * 8


def test_another_number_of_rows_replaces_the_old_ones(spool):
    spool.put(0, A)
    spool.put(1, B)
    spool.put(1, A)
    spool.put(0, B)
    assert (spool.count(0), spool.count(1), len(spool)) == (2, 3, 5)
    assert torch.equal(spool.take([0, 1], torch.arange(5)), torch.cat([B, A]))


def test_space_that_is_free_is_used_again(spool):
    spool.put(0, A)  # rows 0 to 2 of the file
    spool.put(1, B)  # 3 and 4
    spool.put(0, B)  # 0 and 1
    assert spool._scratch.size == 5 * 8
    spool.put(2, A[:1])  # 2
    assert spool._scratch.size == 5 * 8
    spool.put(3, A[:1])  # no room is left before the end
    assert spool._scratch.size == 6 * 8
    assert torch.equal(spool.take([0, 1, 2, 3], torch.arange(6)), torch.cat([B, B, A[:1], A[:1]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4)])
def test_rows_of_any_shape_and_dtype_come_back(dtype, shape, spool):
    rows = torch.arange(5 * torch.Size(shape).numel()).reshape(5, *shape).to(dtype)
    spool.put(0, rows)
    taken = spool.take([0], torch.tensor([4, 0, 2]))
    assert taken.dtype == dtype
    assert torch.equal(taken, rows[[4, 0, 2]])
    assert torch.equal(spool.rows(0), rows)


@pytest.mark.parametrize("made", ["channels last", "transposed", "with a graph"])
def test_rows_are_kept_in_row_major_order(made, spool):
    rows = torch.arange(2 * 3 * 4 * 4.0).reshape(2, 3, 4, 4)
    given = {
        "channels last": rows.contiguous(memory_format=torch.channels_last),
        "transposed": rows.transpose(2, 3).contiguous().transpose(2, 3),
        "with a graph": rows.clone().requires_grad_() * 1,
    }[made]
    spool.put(0, given)
    for again in (spool.rows(0), spool.take([0], torch.arange(2))):
        assert torch.equal(again, rows)
        assert again.stride() == (48, 16, 4, 1)


def test_no_rows_are_rows_too(spool):
    assert (len(spool), spool.keys()) == (0, [])
    spool.put(1, A[:0])
    assert spool.rows(1).shape == spool.take([1], torch.tensor([], dtype=torch.int64)).shape == (0, 2)
    spool.put(2, A)
    spool.put(3, A[:0])
    assert torch.equal(spool.take([1, 2, 3], torch.tensor([2, 0])), A[[2, 0]])
    assert (len(spool), spool.keys(), spool.count(3)) == (3, [1, 2, 3], 0)
    assert spool.take([], torch.tensor([], dtype=torch.int64)).shape == (0, 2)


def test_a_view_outlives_growth_and_clearing(spool):
    spool.put(0, A)
    view = spool.rows(0)
    large = torch.arange(2 * 100_000.0).reshape(-1, 2)
    spool.put(1, large)
    assert torch.equal(spool.rows(1), large)  # by a new mapping
    assert torch.equal(view, A)
    spool.put(0, -A)
    assert torch.equal(view, -A)  # both show the same file
    spool.clear()
    spool.put(0, B)
    assert torch.equal(view, -A)


def test_clearing_forgets_rows_and_shape(spool):
    spool.put(0, A)
    spool.clear()
    assert (len(spool), spool.keys(), 0 in spool) == (0, [], False)
    spool.put(0, torch.ones(2, 3, dtype=torch.int64))
    assert spool.take([0], torch.tensor([1])).tolist() == [[1, 1, 1]]


# ---- what is refused --------------------------------------------------------------------------------------------


def test_rows_unlike_the_first_are_refused_with_both_shapes(spool):
    spool.put(0, A)
    with pytest.raises(ProtocolError, match=r"a row of 7 is float32 of shape \[3\]; .* are float32 of shape \[2\]"):
        spool.put(7, torch.ones(2, 3))
    with pytest.raises(ProtocolError, match=r"float64 of shape \[2\]; .* float32 of shape \[2\]"):
        spool.put(0, A.double())
    with pytest.raises(ProtocolError, match=r"rows of shape \[\] came for 3"):
        spool.put(3, torch.tensor(1.0))
    with pytest.raises(ProtocolError, match=r"rows of shape \[2, 0\] came for 3"):
        spool.put(3, torch.ones(2, 0))
    assert spool.keys() == [0]
    assert torch.equal(spool.rows(0), A)


@pytest.mark.parametrize(("index", "said"), [([0, 5], "rows 0 to 5"), ([-1, 2], "rows -1 to 2")])
def test_rows_that_are_not_there_cannot_be_taken(index, said, spool):
    for key, rows in ((1, A), (2, B), (3, B)):
        spool.put(key, rows)
    with pytest.raises(ProtocolError, match=f"{said} are wanted; 2 keys have 5"):
        spool.take([1, 2], torch.tensor(index))


def test_keys_that_are_not_there_are_named(spool):
    spool.put(1, A)
    for use in (
        lambda: spool.rows(8),
        lambda: spool.count(8),
        lambda: spool.take([1, 8], torch.tensor([0])),
    ):
        with pytest.raises(ProtocolError, match=r"nobody has put rows under 8; there are rows under \[1\]"):
            use()


# ---- files ------------------------------------------------------------------------------------------------------


def test_nothing_is_ever_seen_in_the_directory(spool, tmp_path):
    spool.put(0, A)
    assert list(tmp_path.iterdir()) == []


@linux
def test_a_killed_process_leaves_nothing(tmp_path):
    code = (
        "import sys, torch, os, signal; from catchment.core.spool import Spool\n"
        "spool = Spool(sys.argv[1]); spool.put(0, torch.ones(1000)); print(float(spool.rows(0).sum()), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "1000.0\n")
    assert list(tmp_path.iterdir()) == []


@linux
def test_space_is_given_back(tmp_path):
    rows = torch.ones(1000, 1024)
    with Spool(tmp_path) as spool:
        spool.put(0, rows)
        assert disk(tmp_path) >= 4_096_000
        assert torch.equal(spool.take([0], torch.arange(1000)), rows)
        spool.clear()
        assert disk(tmp_path) == 0
        spool.put(0, rows)
    assert disk(tmp_path) == 0
    spool = Spool(tmp_path)
    spool.put(0, rows)
    del spool
    gc.collect()
    assert disk(tmp_path) == 0


def test_a_full_disk_is_an_error_with_bytes_place_and_way_out(spool, tmp_path, monkeypatch):
    spool.put(0, A)
    spool.put(1, B)
    write, left = os.pwrite, [20]

    def nearly_full(descriptor, buffer, offset):
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(descriptor, buffer[: left[0]], offset)
        left[0] -= written
        return written

    monkeypatch.setattr(os, "pwrite", nearly_full)
    with pytest.raises(RunError) as caught:
        spool.put(2, torch.ones(600, 2))
    with pytest.raises(RunError, match="40 bytes of an upload"):
        spool.put(1, torch.ones(5, 2))
    monkeypatch.setattr(os, "pwrite", write)
    said = f"4,800 bytes of an upload cannot be written to a temporary file in {tmp_path}: No space left on device; "
    assert str(caught.value).startswith(said)
    assert "--out" in str(caught.value)
    assert spool.keys() == [0]
    assert not {1, 2} & spool._scratch._places.keys()
    spool.put(2, B)
    assert torch.equal(spool.take([0, 2], torch.arange(5)), torch.cat([A, B]))


def test_a_directory_that_is_not_there_is_an_error_with_its_name(tmp_path):
    with pytest.raises(RunError, match=r"no temporary file can be made in .*missing: No such file or directory"):
        Spool(tmp_path / "missing").put(0, A)


def test_a_file_that_was_cut_is_an_error_and_no_endless_wait(tmp_path):
    scratch = Scratch(tmp_path)
    scratch.write(0, 10, [b"0123456789"])
    os.ftruncate(scratch._open(), 4)
    with pytest.raises(RunError, match="ends before byte 4; it was changed"):
        scratch.read(0)


@linux
@pytest.mark.parametrize("way", ["put", "take", "checkpoint"])
def test_resident_memory_does_not_grow_with_what_is_kept(way, tmp_path):
    """96 MiB are put or read twice; 8 MiB of them may be in memory at a time."""
    code = """
import sys, torch
from catchment.core import spool as spools
from catchment.runs.state import flatten, streamed
from catchment.exchange.message import Message

def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")) // 1024

spools.RESIDENT = spools.PASSING = 8 * 2**20
spool = spools.Spool(sys.argv[1])
for key in range(24):
    spool.put(key, torch.full((256, 4096), float(key)))
order = torch.randperm(24 * 256, generator=torch.Generator().manual_seed(0))
spool.take(range(24), order[:64])
start, peak, total, beside = resident(), 0, 0.0, []
for _ in range(2):
    if sys.argv[2] == "put":
        for key in range(24):
            rows = torch.full((256, 4096), float(key))
            beside.append(torch.zeros(5_000))  # what stays of an upload lies where the one before was
            spool.put(key, rows)
            total += float(spool.take([key], torch.arange(256))[:, 0].sum())
            peak = max(peak, resident())
    elif sys.argv[2] == "take":
        for part in order.split(64):
            total += float(spool.take(range(24), part)[:, 0].sum())
            peak = max(peak, resident())
    else:
        tensors, found = {}, []
        flatten(spool, "spool", tensors, found)
        for buffer in streamed(Message(tensors), found):
            total += sum(buffer[:: 4 * 4096]) if len(buffer) == 4 * 2**20 else 0
            peak = max(peak, resident())
print(total, peak - start)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), way], capture_output=True, text=True, check=True
    ).stdout.split()
    assert float(done[0]) == (0 if way == "checkpoint" else 2 * 256 * sum(range(24)))
    assert int(done[1]) < 40


def test_threads_write_and_read_their_own_keys(tmp_path):
    """Sizes change all the time, so that places move; everybody finds what they wrote."""
    scratch, wrong = Scratch(tmp_path), []

    def work(key: int) -> None:
        for step in range(200):
            content = bytes([key]) * (1 + (step * (key + 3)) % 50)
            scratch.write(key, len(content), [content[:1], content[1:]])
            if scratch.read(key) != content:
                wrong.append((key, step))
            if step % 5 == 4:
                scratch.remove(key)

    threads = [threading.Thread(target=work, args=(key,)) for key in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert scratch.size == 0  # the last one out


# ---- checkpoints ------------------------------------------------------------------------------------------------


def filled(directory) -> Spool:
    spool = Spool(directory)
    spool.put(10, A)
    spool.put(2, B)
    spool.put(5, B[:0])
    return spool


def test_a_spool_in_a_state_comes_back_from_a_checkpoint(tmp_path):
    directory = tmp_path / "checkpoints"
    fleet = FleetSnapshot(InFlightSnapshot(1, 0, [], [], Snapshot(0.0)), {}, {}, {})
    Checkpoints(directory).save(1, {"features": filled(tmp_path), "n": 3}, fleet, {})
    fresh = {"features": Spool(tmp_path), "n": 0}
    fresh["features"].put(77, A)
    loaded = Checkpoints(directory).latest()
    assert loaded is not None
    state = unflatten(loaded.state, loaded.tensors, fresh)
    assert state["n"] == 3
    again = state["features"]
    assert again is fresh["features"]
    assert again.keys() == [2, 5, 10]
    assert torch.equal(again.take([2, 5, 10], torch.arange(5)), torch.cat([B, A]))
    assert again.rows(5).shape == (0, 2)


def test_a_spool_that_a_fresh_state_does_not_have_is_a_clear_error(tmp_path):
    tensors: dict[str, torch.Tensor] = {}
    form = flatten([filled(tmp_path)], "state", tensors)
    with pytest.raises(ProtocolError, match="a spool or a dataclass in a place where a new state of the method has"):
        unflatten(json.loads(json.dumps(form)), tensors, [])


def test_a_stream_is_the_bytes_of_the_message_and_copies_nothing(tmp_path):
    tensors: dict[str, torch.Tensor] = {"a": torch.arange(6.0).reshape(2, 3).t(), "b": torch.tensor([1, 2, 3])}
    found: list[Spool] = []
    spool = filled(tmp_path)
    flatten({"x": [spool]}, "state", tensors, found)
    assert found == [spool]
    message = Message(tensors, {"text": "é", "n": 1})
    parts = list(streamed(message, found))
    assert b"".join(parts) == message.to_bytes()
    spool.put(10, -A)
    assert -1.0 in [value for part in parts if isinstance(part, memoryview) for value in part.cast("f").tolist()[:1]]


def test_a_file_is_written_in_parts_or_not_at_all(tmp_path):
    def parts(complete):
        yield b"ab"
        yield memoryview(b"cd")
        if not complete:
            raise KeyboardInterrupt

    path = tmp_path / "file"
    write_atomically(path, parts(True))
    assert path.read_bytes() == b"abcd"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, parts(False))
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("file", b"old")]


def test_a_fingerprint_sees_what_is_in_a_spool(tmp_path):
    """Equal contents, equal prints, wherever the rows lie in the file."""
    first, second = filled(tmp_path), Spool(tmp_path)
    second.put(5, A[:0])
    second.put(2, B)
    second.put(10, A)
    assert fingerprint({"s": first}, {}) == fingerprint({"s": second}, {})
    second.put(10, torch.cat([2 * A[:1], A[1:]]))
    assert fingerprint({"s": first}, {}) != fingerprint({"s": second}, {})


def test_a_fingerprint_is_the_hash_of_the_joined_bytes_and_does_not_tell_who_was_first():
    w, measured = torch.tensor([1.0, 2.0]), {"accuracy": 0.5}
    form = [{"dict": [["n", {"value": 3}], ["w", {"tensor": "state/1"}]]}, measured]
    whole = Message({"state/1": w}, {"form": json.dumps(form)}).to_bytes()
    assert fingerprint({"w": w, "n": 3}, measured) == hashlib.sha256(whole).hexdigest()[:16]
    assert fingerprint({"n": 3, "w": w}, measured) == fingerprint({"w": w, "n": 3}, measured)
    assert fingerprint({"n": 4, "w": w}, measured) != fingerprint({"w": w, "n": 3}, measured)


def test_a_tensor_on_disk_is_the_same_and_its_file_goes_with_it(tmp_path):
    tensor = torch.arange(24.0).reshape(2, 3, 4).bfloat16().transpose(0, 1)
    copy = on_disk(tensor, tmp_path)
    assert torch.equal(copy, tensor)
    assert copy.dtype == tensor.dtype
    assert list(tmp_path.iterdir()) == []
    view = copy[1:]
    del copy
    assert torch.equal(view, tensor[1:])


def test_tensors_on_disk_need_no_descriptors(tmp_path):
    before = len(os.listdir("/dev/fd"))
    held = [on_disk(torch.full((3,), number), tmp_path) for number in range(20)]
    assert len(os.listdir("/dev/fd")) == before
    assert [int(tensor.sum()) for tensor in held] == [3 * number for number in range(20)]


def test_room_is_found_without_a_look_at_all_places(tmp_path):
    """Writes and removals at random: bytes come back, gaps are used again, and no write walks through the others."""

    class Unwalked(dict):
        def values(self):
            raise AssertionError("all places were looked at")

    scratch, draw = Scratch(tmp_path), random.Random(0)
    scratch._places = Unwalked()
    content = {}
    for number in range(600):
        if len(content) > 40:
            gone = draw.choice(sorted(content))
            scratch.remove(gone)
            del content[gone]
        key = draw.choice([number, *content])
        content[key] = bytes([number % 256]) * draw.randrange(0, 50)
        scratch.write(key, len(content[key]), [content[key]])
        assert scratch.read(key) == content[key]
    assert {key: scratch.read(key) for key in content} == content
    used = sum(map(len, content.values()))
    assert used + sum(end - begin for begin, end in scratch._gaps.items()) == scratch._top
    assert scratch.size < 2 * 41 * 25
    for key in content:
        scratch.remove(key)
    assert scratch.size == 0
