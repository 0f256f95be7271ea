"""Files of one record per line."""

from dataclasses import dataclass

import pytest

from catchment.errors import RunError, UserError
from catchment.runs.journal import Journal, read_lines


@dataclass(frozen=True)
class Line:
    round: int


def test_lines_are_appended_cut_and_read(tmp_path):
    journal = Journal(tmp_path / "lines.jsonl", Line)
    journal.cut(0)
    assert journal.until(0) == []
    for number in (1, 2, 3):
        journal.add(Line(number))
    journal.flush()
    assert (tmp_path / "lines.jsonl").read_text() == '{"round": 1}\n{"round": 2}\n{"round": 3}\n'
    journal.cut(2)
    assert journal.until(1) == [Line(1)]
    assert journal.until(2) == [Line(1), Line(2)]
    assert (tmp_path / "lines.jsonl").read_text() == '{"round": 1}\n{"round": 2}\n'


def test_a_torn_line_after_the_checkpoint_is_cut(tmp_path):
    (tmp_path / "lines.jsonl").write_text('{"round": 1}\n{"rou')
    journal = Journal(tmp_path / "lines.jsonl", Line)
    with pytest.raises(UserError, match=r"lines\.jsonl, line 2, is damaged"):
        journal.until(2)
    journal.cut(1)
    assert (tmp_path / "lines.jsonl").read_text() == '{"round": 1}\n'


def test_fewer_lines_than_the_checkpoint_says_are_left_as_they_are(tmp_path):
    (tmp_path / "lines.jsonl").write_text('{"round": 1}\n')
    with pytest.raises(RunError, match="has 1 rounds, its checkpoint says 2; it was changed"):
        Journal(tmp_path / "lines.jsonl", Line).until(2)
    assert (tmp_path / "lines.jsonl").read_text() == '{"round": 1}\n'


def test_a_journal_without_a_file_keeps_nothing():
    journal = Journal(None, Line)
    journal.add(Line(1))
    journal.flush()
    journal.cut(0)
    assert journal.until(0) == []


def test_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(RunError, match=r"lines\.jsonl cannot be written: No such file or directory"):
        Journal(tmp_path / "nowhere" / "lines.jsonl", Line).add(Line(1))


def test_no_file_has_no_records(tmp_path):
    assert read_lines(tmp_path / "lines.jsonl", Line) == []
