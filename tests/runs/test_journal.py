"""Files of one record per line."""

from dataclasses import dataclass

import pytest

from catchment.errors import RunError, UserError
from catchment.runs.journal import Journal, Lines, NewLines


@dataclass(frozen=True)
class Line:
    round: int


def test_lines_are_appended_cut_and_read(tmp_path):
    journal = Journal(tmp_path / "lines.jsonl", Line)
    journal.cut(0)
    assert list(journal.until(0)) == []
    for number in (1, 2, 3):
        journal.add(Line(number))
    journal.flush()
    assert (tmp_path / "lines.jsonl").read_text() == '{"round": 1}\n{"round": 2}\n{"round": 3}\n'
    journal.cut(2)
    assert list(journal.until(1)) == [Line(1)]
    assert list(journal.until(2)) == [Line(1), Line(2)]
    assert (tmp_path / "lines.jsonl").read_text() == '{"round": 1}\n{"round": 2}\n'


def test_a_torn_line_after_the_checkpoint_is_cut(tmp_path):
    (tmp_path / "lines.jsonl").write_text('{"round": 1}\n{"rou')
    journal = Journal(tmp_path / "lines.jsonl", Line)
    with pytest.raises(UserError, match=r"lines\.jsonl, line 2, is damaged"):
        list(journal.until(2))
    journal.cut(1)
    assert (tmp_path / "lines.jsonl").read_text() == '{"round": 1}\n'


def test_fewer_lines_than_the_checkpoint_says_are_left_as_they_are(tmp_path):
    (tmp_path / "lines.jsonl").write_text('{"round": 1}\n')
    with pytest.raises(RunError, match="has 1 rounds, its checkpoint says 2; it was changed"):
        list(Journal(tmp_path / "lines.jsonl", Line).until(2))
    assert (tmp_path / "lines.jsonl").read_text() == '{"round": 1}\n'


def test_a_journal_without_a_file_keeps_nothing():
    journal = Journal(None, Line)
    journal.add(Line(1))
    journal.flush()
    journal.cut(0)
    assert list(journal.until(0)) == []


def test_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(RunError, match=r"lines\.jsonl cannot be written: No such file or directory"):
        Journal(tmp_path / "nowhere" / "lines.jsonl", Line).add(Line(1))


def test_no_file_has_no_records(tmp_path):
    assert list(Lines(tmp_path / "lines.jsonl", Line)) == []


def test_records_are_read_one_by_one_and_as_often_as_they_are_wanted(tmp_path):
    (tmp_path / "lines.jsonl").write_text('{"round": 1}\n{"round": 2}\n\n')
    lines = Lines(tmp_path / "lines.jsonl", Line)
    one, again = iter(lines), iter(lines)
    assert [next(one), next(again), next(one)] == [Line(1), Line(1), Line(2)]
    with pytest.raises(UserError, match=r"lines\.jsonl, line 3, is damaged"):
        next(one)


@pytest.mark.parametrize(("torn", "rounds"), [(b'{"rou', 1), (b'{"round": 2}', 2)])
def test_half_a_line_at_the_end_is_left_out_where_a_run_may_have_been_killed(tmp_path, torn, rounds):
    (tmp_path / "lines.jsonl").write_bytes(b'{"round": 1}\n' + torn)
    assert len(list(Lines(tmp_path / "lines.jsonl", Line, may_be_torn=True))) == rounds


def test_new_lines_are_read_once_and_whole(tmp_path):
    path = tmp_path / "lines.jsonl"
    lines = NewLines(path)
    assert lines.read() == []
    path.write_bytes(b"1\n22\n3")
    assert lines.read() == [b"1", b"22"]
    with path.open("r+b") as file:
        file.write(b"\n\n\n\n")  # over what was read: who reads it again sees other lines
    with path.open("ab") as file:
        file.write(b"3\n4")
    assert lines.read() == [b"33"]
    assert lines.read() == []


def test_of_a_file_that_was_cut_the_lines_beyond_those_that_were_read_are_new(tmp_path):
    journal, lines = Journal(tmp_path / "lines.jsonl", Line), NewLines(tmp_path / "lines.jsonl")
    for number in (1, 2, 3):
        journal.add(Line(number))
    assert len(lines.read()) == 3
    journal.cut(1)
    assert lines.read() == []
    journal.add(Line(2))
    assert lines.read() == [b'{"round": 2}']
    journal.cut(0)
    for number in (1, 2, 3):
        journal.add(Line(number))
    assert lines.read() == [b'{"round": 3}']
