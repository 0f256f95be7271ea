"""`catchment plan --advise --try`: the table, what is said below it, and the file to run next."""

import json

import pytest
from typer.testing import CliRunner

from catchment import Experiment
from catchment.cli.app import app
from catchment.cli.trials import _write, parse_time
from catchment.errors import UserError
from catchment.studies.candidates import Candidate, Size
from catchment.studies.trials import Outcome, Standing, Trial

FILE = """
workers = 1
rounds = 2
method = { name = "fedprox", mu = 0.5 }
data = { clients = 2, train = 300, test = 60 }
models.client = "mlp"
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("catchment.planning.advice.METHODS", ("fedavg", "fedmd"))
    monkeypatch.setattr("catchment.studies.trials.RATES", (3.0,))
    path = tmp_path / "my.toml"
    path.write_text(FILE)
    return path


def invoke(*arguments):
    return CliRunner().invoke(app, ["plan", "my.toml", *arguments])


def test_what_is_advised_is_a_file_that_runs(file):
    shown = invoke("--advise", "--try", "10m", "--set", "seed=3", "--set", "method.mu=0.25")
    assert shown.exit_code == 0, shown.output
    assert "To run next: catchment run my-advised.toml" in shown.output
    assert "fedmd was not tried: fedmd exchanges predictions of public samples" in shown.output
    again = invoke("--advise", "--try", "10m", "--set", "seed=3", "--set", "method.mu=0.25", "--json")
    found = json.loads(again.output)
    advised = Experiment.load("my-advised.toml")
    assert (advised.seed, advised.rounds, advised.data.train, advised.optimizer.client.lr) == (3, 2, 300, 0.003)
    chosen = found["chosen"]["method"]
    assert found["file"] == "my-advised.toml"
    assert (
        advised.method
        == Experiment.from_dict({"method": {"name": chosen, **({"mu": 0.25} if chosen == "fedprox" else {})}}).method
    )
    assert len(found["trials"]) == 2


def test_the_file_to_run_next_has_what_the_other_method_needs(file):
    file.write_text('method.name = "fedgkt"\nmodels.client = "cnn"\nwire.codecs = ["features=int8", "weights=fp16"]\n')
    chosen = Standing(Trial(Candidate(method="fedzkt"), 0.003), 2, None, "")
    outcome = Outcome(Size(300, 75, 2, 1.0), [chosen], chosen, True, {})
    assert _write(file, {}, Experiment.load(file), outcome, "catchment plan") == file.with_name("my-advised.toml")
    advised = Experiment.load("my-advised.toml")
    assert (advised.method["name"], advised.models.server) == ("fedzkt", "resnet11")  # a whole model in place of a half
    assert advised.wire.codecs == ("weights=fp16",)


def test_a_time_has_a_unit():
    assert [parse_time(text) for text in ("90s", "1.5m", "2h")] == [90, 90, 7200]
    for text in ("10", "0m", "m", "-1m", "1d"):
        with pytest.raises(UserError, match="a time is expected, such as 90s, 10m or 1h"):
            parse_time(text)


def test_trials_are_part_of_the_advice(file):
    error = invoke("--try", "1m").exception
    assert isinstance(error, UserError)
    assert str(error) == "--try is part of the advice: catchment plan FILE --advise --try 10m"
