"""Trackers see every round and can never fail a run."""

import logging
import sys

import pytest

import catchment
from catchment import trackers
from catchment.config.experiment import Experiment
from catchment.errors import ExperimentError
from catchment.trackers import numbers_of, tracking


@pytest.fixture
def experiment():
    data = {"name": "digits", "clients": 2, "train": 60, "test": 30}
    return Experiment.from_dict({"name": "t", "rounds": 2, "workers": 1, "data": data, "models": {"client": "mlp"}})


def use(monkeypatch, tracker):
    monkeypatch.setitem(trackers.TRACKERS, "mine", lambda experiment, directory: tracker)


class Notebook:
    def __init__(self, fails_in=None):
        self.fails_in = fails_in
        self.pages = []
        self.closed = False

    def log(self, numbers, round):
        self.pages.append((round, numbers["accuracy"]))
        if round == self.fails_in:
            raise OSError("no space left")

    def close(self):
        self.closed = True


def test_every_round_reaches_the_tracker(experiment, tmp_path, monkeypatch):
    notebook = Notebook()
    use(monkeypatch, notebook)
    with tracking(["mine"], experiment, tmp_path) as observe:
        result = catchment.run(experiment, observe=observe)
    assert [round for round, _ in notebook.pages] == [1, 2]
    assert notebook.pages[-1][1] == result["accuracy"]
    assert notebook.closed


def test_a_tracker_that_fails_is_left_out_and_the_run_goes_on(experiment, tmp_path, monkeypatch, caplog):
    notebook = Notebook(fails_in=1)
    use(monkeypatch, notebook)
    with caplog.at_level(logging.WARNING), tracking(["mine"], experiment, tmp_path) as observe:
        assert catchment.run(experiment, observe=observe)["rounds"] == 2
    assert [round for round, _ in notebook.pages] == [1]
    assert "tracker mine failed and is dropped: OSError: no space left" in caplog.text


@pytest.mark.parametrize("name", ["mlflow", "tensorboard", "wandb"])
def test_a_package_that_is_missing_is_a_warning(name, experiment, tmp_path, monkeypatch, caplog):
    for module in (name, "mlflow.tracking", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, module, None)
    with caplog.at_level(logging.WARNING), tracking([name], experiment, tmp_path) as observe:
        observe({"round": 1, "accuracy": 0.5})
    assert f"pip install 'catchment-fl[{name}]'" in caplog.text


def test_an_unknown_tracker_is_refused_before_the_run(experiment, tmp_path):
    with pytest.raises(ExperimentError, match='unknown tracker "tensorbord"; did you mean "tensorboard"'):
        tracking(["tensorbord"], experiment, tmp_path).__enter__()


def test_the_numbers_of_a_round_are_flat():
    record = {"round": 3, "accuracy": 0.5, "bytes": {"up": 1}, "events": [{"what": "lost"}], "self_reported": ["x"]}
    assert numbers_of(record) == {"accuracy": 0.5, "bytes.up": 1}


def test_tensorboard_reads_what_was_written(experiment, tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with tracking(["tensorboard"], experiment, tmp_path) as observe:
        observe({"round": 1, "accuracy": 0.5})
        observe({"round": 2, "accuracy": 0.75})
    written = events.EventAccumulator(str(tmp_path / "tensorboard"))
    written.Reload()
    assert [(scalar.step, scalar.value) for scalar in written.Scalars("accuracy")] == [(1, 0.5), (2, 0.75)]


def test_mlflow_reads_what_was_written(experiment, tmp_path):
    mlflow = pytest.importorskip("mlflow.tracking")
    with tracking(["mlflow"], experiment, tmp_path / "run") as observe:
        observe({"round": 1, "accuracy": 0.5})
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    place = client.get_experiment_by_name("catchment").experiment_id
    (run,) = client.search_runs([place])
    assert (run.data.metrics, run.info.status) == ({"accuracy": 0.5}, "FINISHED")
