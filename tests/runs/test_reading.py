"""From files to runs: whole, killed, damaged, or no run at all."""

import json

import pytest

import catchment
from catchment.errors import UserError
from catchment.runs.journal import to_dict
from catchment.runs.reading import RunFiles, labels
from catchment.runs.records import Best, Bytes


def test_a_finished_run(make_run):
    run = RunFiles.read(make_run("first"))
    assert (run.name, run.method, run.planned, run.done, run.unfinished) == ("first", "fedavg", 3, 3, "")
    assert [record.round for record in run.rounds] == [1, 2, 3]
    assert [record.round for record in run.evaluated] == [1, 3]
    assert run.outcome is run.result
    assert len(list(run.ledger)) == 3


def test_an_unfinished_run_knows_what_it_has_so_far(make_run, parts):
    rounds = [
        parts.round(1, accuracy=0.5, evaluation=10, virtual_seconds=2.0, events=[parts.event("lost")]),
        parts.round(2, accuracy=0.25, evaluation=10, virtual_seconds=3.0, events=[parts.event("lost")]),
        parts.round(3, virtual_seconds=7.0, events=[parts.event("failed")]),
    ]
    run = RunFiles.read(make_run(rounds=rounds, result=None, planned=8))
    assert run.unfinished == "unfinished: 3 of 8 rounds"
    outcome = run.outcome
    assert outcome.accuracy == 0.25
    assert outcome.best == Best(accuracy=0.5, round=1)
    assert outcome.clients.accuracy.max == 0.375
    assert outcome.bytes == Bytes(up=1800, down=900, evaluation=20)
    assert (outcome.seconds, outcome.virtual_seconds) == (1.5, 7.0)
    assert (outcome.lost, outcome.late, outcome.failed) == (2, 0, 1)


def test_a_run_that_was_killed_in_its_first_round(make_run):
    run = RunFiles.read(make_run(rounds=None, ledger=None, result=None))
    assert run.unfinished == "unfinished: 0 of 3 rounds"
    assert run.outcome.accuracy is None
    assert run.outcome.best is None
    assert run.outcome.bytes == Bytes(up=0, down=0, evaluation=0)


@pytest.mark.parametrize("file", ["rounds.jsonl", "ledger.jsonl"])
@pytest.mark.parametrize("torn", [b'{"round": 4, "byt', b"\xff\xfe", b"\0\0\0\0"])
def test_a_torn_last_line_of_a_killed_run_is_left_out(make_run, file, torn):
    directory = make_run(result=None, planned=8)
    with (directory / file).open("ab") as stream:
        stream.write(torn)
    run = RunFiles.read(directory)
    assert (len(run.rounds), len(list(run.ledger))) == (3, 3)


def test_a_last_line_without_its_newline_counts(make_run):
    directory = make_run(result=None)
    (directory / "rounds.jsonl").write_text((directory / "rounds.jsonl").read_text().rstrip("\n"))
    assert len(RunFiles.read(directory).rounds) == 3


def test_a_torn_line_of_a_finished_run_is_damage(make_run):
    directory = make_run()
    with (directory / "rounds.jsonl").open("a") as stream:
        stream.write('{"round": 4')
    with pytest.raises(UserError, match=r"rounds\.jsonl, line 4, is damaged"):
        RunFiles.read(directory)


def test_a_damaged_line_in_the_middle(make_run):
    directory = make_run(result=None)
    lines = (directory / "rounds.jsonl").read_text().splitlines()
    (directory / "rounds.jsonl").write_text("\n".join([lines[0], lines[1][:20], lines[2]]) + "\n")
    with pytest.raises(UserError, match=r"rounds\.jsonl, line 2, is damaged"):
        RunFiles.read(directory)


def test_no_run(tmp_path):
    for directory in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match=r"holds no run \(it has no experiment\.toml\)"):
            RunFiles.read(directory)


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("experiment.toml", "name = ", "experiment.toml is damaged: "),
        ("experiment.toml", b"\xff", "experiment.toml is damaged: "),
        ("experiment.toml", 'name = "x"', "experiment.toml is not what a run writes: rounds is missing"),
        ("result.json", "{", "result.json is damaged: "),
        ("result.json", "[" * 100_000, "result.json is damaged: "),
        ("result.json", "[]", "result.json is not what a run writes: it is []"),
        (
            "result.json",
            '{"name": "a", "method": "b", "accuracy": "high"}',
            'not what a run writes: accuracy is the text "high"',
        ),
        (
            "result.json",
            '{"name": "a", "method": "b", "accuracy": NaN}',
            "not what a run writes: accuracy is nan",
        ),
        ("rounds.jsonl", "{}\n", "rounds.jsonl, line 1, is not what a run writes: round is missing"),
        ("rounds.jsonl", '{"round": 1, "bytes": {"up": 1}}\n', "bytes.down is missing"),
        (
            "ledger.jsonl",
            '{"round": 1, "entries": {}}\n',
            "ledger.jsonl, line 1, is not what a run writes: entries is {}",
        ),
        ("ledger.jsonl", '{"round": 1, "entries": [{"direction": ["up"]}]}\n', "entries[0].direction is ['up']"),
    ],
)
def test_damage_is_one_sentence(make_run, file, content, sentence):
    directory = make_run()
    (directory / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as raised:
        RunFiles.read(directory)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_cannot_be_read(make_run):
    directory = make_run()
    (directory / "result.json").unlink()
    (directory / "result.json").mkdir()
    with pytest.raises(UserError, match=r"result\.json cannot be read: Is a directory"):
        RunFiles.read(directory)


def test_labels_differ(make_run):
    paths = [
        make_run("a", name="one"),
        make_run("two"),
        make_run("two-2", name="two"),
        make_run("b", name="two"),
        make_run("deep/b", name="two"),
    ]
    assert labels([RunFiles.read(path) for path in paths]) == ["one", "two", "two-2", "two (b) #4", "two (b) #5"]


def test_a_real_run_fits_and_its_rounds_say_what_its_result_says(tmp_path):
    table = {
        "name": "real",
        "rounds": 2,
        "workers": 1,
        "data": {"clients": 3, "train": 60, "test": 20},
        "models": {"client": "cnn"},
        "devices": {"profile": ["phone", "slow-phone"]},
        "faults": {"drop": 0.4},
    }
    result = catchment.run(catchment.Experiment.from_dict(table), out=tmp_path / "run")
    assert to_dict(RunFiles.read(tmp_path / "run").outcome) == json.loads(json.dumps(result)) == result
    (tmp_path / "run" / "result.json").unlink()
    so_far = to_dict(RunFiles.read(tmp_path / "run").outcome)
    assert so_far["lost"] > 0
    assert so_far["virtual_seconds"] > 0
    assert 0 < so_far.pop("seconds") < result["seconds"]  # less what came after the last record
    assert so_far.pop("spent").keys() == result["spent"].keys()
    later = ("bytes_by_field", "leaves", "attack", "probe", "costs", "data", "fingerprint")
    assert not any(so_far.pop(key) for key in later)
    assert so_far == {key: result[key] for key in so_far}


def test_bytes_until_an_accuracy_is_reached(make_run, parts):
    rounds = [parts.round(1, accuracy=0.25), parts.round(2), parts.round(3, accuracy=0.5), parts.round(4, accuracy=0.4)]
    rounds[2]["clients"]["accuracy"]["mean"] = 0.45  # the clients' mean counts where there is one
    run = RunFiles.read(make_run("reaching", rounds=rounds, planned=4))
    assert run.curve == [(900, 0.25, 600), (2700, 0.45, 1800), (3600, 0.4, 2400)]
    assert [run.bytes_to_reach(x) for x in (0.1, 0.25, 0.26, 0.45, 0.46)] == [900, 900, 2700, 2700, None]


def test_without_clients_the_headline_is_what_is_reached(make_run, parts):
    record = {**parts.round(1, accuracy=0.5), "clients": None}
    assert RunFiles.read(make_run("alone", rounds=[record], planned=1)).bytes_to_reach(0.5) == 900


def test_notes_must_be_numbers(make_run, parts):
    with pytest.raises(UserError, match=r"notes\.wanted is"):
        RunFiles.read(make_run("noted", rounds=[{**parts.round(1), "notes": {"wanted": "many"}}], planned=1))
