"""A run that is stopped and resumed, any number of times, ends as if nothing had happened."""

from __future__ import annotations

import pytest
from worlds import METHODS, PHONES, TROUBLE, experiment

import catchment
from catchment.runs import checkpoint, client_files
from catchment.testing import Outcome, lived


@pytest.mark.parametrize("name", METHODS)
def test_stopped_after_every_round_and_resumed(name, reference, tmp_path):
    settings = {"rounds": 3, **TROUBLE}
    stopped = lived(experiment(name, few=True, **settings), tmp_path / "stopped", stops=True)
    assert stopped == reference(name, **settings)


@pytest.mark.parametrize("name", ["standalone", "fedgkt, asynchronous"])
def test_stopped_at_every_write_of_a_checkpoint(name, tmp_path, monkeypatch):
    """Die just before the n-th file is put in its place, for every n: the moments that random kills rarely hit."""
    settings = {"few": True, "rounds": 3, **PHONES}
    catchment.run(experiment(name, **settings), out=tmp_path / "whole")
    write = checkpoint.write_atomically

    class Died(BaseException):
        pass

    for fatal in range(1, 7):
        out = tmp_path / f"broken{fatal}"
        left = [fatal]

        def dying(path, content, left=left):
            left[0] -= 1
            if left[0] == 0:
                whole = b"".join(content)
                path.with_name(path.name + ".part").write_bytes(whole[: len(whole) // 2])
                raise Died
            write(path, content)

        for module in (checkpoint, client_files):
            monkeypatch.setattr(module, "write_atomically", dying)
        with pytest.raises(Died):
            catchment.run(experiment(name, **settings), out=out)
        for module in (checkpoint, client_files):
            monkeypatch.setattr(module, "write_atomically", write)
        catchment.resume(out)
        assert Outcome.of(out) == Outcome.of(tmp_path / "whole"), fatal


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(tmp_path):
    settings = {"rounds": 5}
    catchment.run(experiment("standalone", **settings), out=tmp_path / "whole")
    catchment.run(experiment("standalone", **settings), out=tmp_path / "broken")
    (tmp_path / "broken" / "result.json").unlink()
    newest = max((tmp_path / "broken" / "checkpoints").glob("round-*"))
    newest.write_bytes(newest.read_bytes()[:-100])
    catchment.resume(tmp_path / "broken")
    assert Outcome.of(tmp_path / "broken") == Outcome.of(tmp_path / "whole")


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    catchment.run(experiment("fedavg"), out=tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    catchment.resume(tmp_path / "run")
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
