"""Small run directories, written by hand: three rounds of a method with a server and three clients."""

import json
from pathlib import Path

import pytest

TOML = """\
name = {name}
rounds = {rounds}

[method]
name = "fedavg"

[data]
name = "digits"
clients = 3

[data.partition]
name = "dirichlet"
alpha = 0.5
"""


def a_round(number, *, accuracy=None, up=600, down=300, evaluation=0, virtual_seconds=0.0, events=()):
    record = {
        "round": number,
        "bytes": {"up": up, "down": down, "evaluation": evaluation},
        "seconds": 0.5,
        "virtual_seconds": virtual_seconds,
        "events": list(events),
    }
    if accuracy is not None:
        record["accuracy"] = accuracy
        record["server"] = {"accuracy": accuracy, "loss": 2.0 - accuracy}
        spread = {"mean": accuracy, "min": accuracy - 0.125, "max": accuracy + 0.125}
        record["clients"] = {"accuracy": spread}
    return record


def an_entry(direction, clients, tensors, purpose="training"):
    return {"direction": direction, "purpose": purpose, "clients": list(clients), "tensors": tensors}


def an_event(what, client=1, why="no reply"):
    return {"what": what, "client": client, "handler": "local_training", "why": why}


ROUNDS = [a_round(1, accuracy=0.25), a_round(2), a_round(3, accuracy=0.5)]
LEDGER = [
    {
        "round": number,
        "entries": [
            an_entry("down", [0, 1], {"weights/a": 100, "(framing)": 50}),
            an_entry("up", [0, 1], {"weights/a": 100, "weights/b": 150, "(framing)": 50}),
        ],
    }
    for number in (1, 2, 3)
]
RESULT = {
    "name": "run",
    "method": "fedavg",
    "accuracy": 0.5,
    "best": {"accuracy": 0.5, "round": 3},
    "server": {"accuracy": 0.5, "loss": 1.5},
    "clients": {"accuracy": {"mean": 0.5, "min": 0.375, "max": 0.625}},
    "more": {},
    "rounds": 3,
    "bytes": {"up": 1800, "down": 900, "evaluation": 0},
    "seconds": 1.5,
    "virtual_seconds": 0.0,
    "lost": 0,
    "late": 0,
    "failed": 0,
    "costs": {
        "clients": {"cnn": {"parameters": 6090, "macs_per_sample": 84224}},
        "peak_memory": {"local_training of cnn": 517524, "test of cnn": None},
    },
    "data": {
        "name": "digits",
        "clients": 3,
        "train": 1498,
        "smallest_client": 103,
        "largest_client": 257,
        "test": 299,
        "public": 0,
    },
    "fingerprint": "4e4a75bc21350638",
}


@pytest.fixture
def make_run(tmp_path):
    """Writes a run's directory; `result=None` leaves it unfinished, `result={...}` changes some of its values."""

    def make(directory="run", name=None, rounds=ROUNDS, ledger=LEDGER, result=(), planned=3) -> Path:
        path = tmp_path / directory
        path.mkdir(parents=True)
        toml = TOML.format(name=json.dumps(name or directory), rounds=planned)
        (path / "experiment.toml").write_text(toml, encoding="utf-8")
        for file, records in (("rounds.jsonl", rounds), ("ledger.jsonl", ledger)):
            if records is not None:
                (path / file).write_text("".join(json.dumps(record) + "\n" for record in records))
        if result is not None:
            (path / "result.json").write_text(json.dumps({**RESULT, **dict(result)}))
        return path

    return make


@pytest.fixture
def parts():
    """The makers of records."""

    class Parts:
        round = staticmethod(a_round)
        entry = staticmethod(an_entry)
        event = staticmethod(an_event)

    return Parts
