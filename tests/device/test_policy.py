"""The policy of a device: a file, closed by default."""

from __future__ import annotations

import dataclasses
import math
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from catchment.cli.app import app
from catchment.device.policy import KINDS, Allow, Limits, Policy, digest
from catchment.device.sent import SentLog
from catchment.errors import UserError
from catchment.methods import METHODS


def insecure(folder: Path, **more: object) -> Policy:
    return Policy("fl.example.org:9092", 3, folder / "state", insecure=True, **more)


def test_a_digest_tells_experiment_from_form():
    assert digest("a", "b") == digest("a", "b")
    assert len({digest("a", "b"), digest("ab", ""), digest("", "ab"), digest("b", "a")}) == 4


def test_by_default_no_data_leave_and_nothing_they_can_be_rebuilt_from():
    assert set(METHODS) - set(Allow().methods) == {"centralized"}
    assert Allow().leaves == ("weights", "masks", "logits", "counts", "metrics")
    assert Allow().experiments == ()
    assert not Allow().trusted
    assert all(math.isfinite(limit) for limit in dataclasses.astuple(Limits()))


def test_a_policy_survives_its_file(tmp_path):
    whole = Policy(
        "h:1", 0, tmp_path / "s", tmp_path / "d", tmp_path / "m", tmp_path / "ca.crt", tmp_path / "k",
        tmp_path / "federation.pub",
        allow=Allow(("fedavg",), ("weights", "images"), ("0" * 64,)),
        limits=Limits(bytes_up_per_run=math.inf, seconds_per_request=1.5),
    )  # fmt: skip
    for policy in (whole, insecure(tmp_path)):
        policy.write(tmp_path / "device.toml")
        assert Policy.load(tmp_path / "device.toml") == policy
        assert stat.S_IMODE((tmp_path / "device.toml").stat().st_mode) == 0o600


def test_every_key_of_the_file_is_explained(tmp_path):
    insecure(tmp_path).write(tmp_path / "device.toml")
    lines = (tmp_path / "device.toml").read_text().splitlines()
    keys = [number for number, line in enumerate(lines) if " = " in line]
    assert len(keys) == sum(len(dataclasses.fields(table)) for table in (Policy, Allow, Limits)) - 2
    assert all(lines[number - 1].startswith("# ") for number in keys)


def test_paths_are_seen_from_the_folder_of_the_file(tmp_path):
    (tmp_path / "device.toml").write_text('server = "h:1"\nclient = 0\ninsecure = true\ndata = "mine"\n')
    assert Policy.load(tmp_path / "device.toml").data == tmp_path / "mine"


def test_a_local_client_lets_its_own_run_have_everything(tmp_path):
    policy = Policy.local(
        client=1, server="h:1", state=tmp_path, key=None, federation=None, experiment="0" * 64, data=None, modules=None
    )
    assert policy.allow == Allow(tuple(METHODS), KINDS, ("0" * 64,), trusted=True)
    assert set(dataclasses.astuple(policy.limits)) == {math.inf, 0}
    assert policy.limits.least_samples == 0


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("rounds = 3", 'unknown key "rounds"'),
        ("client = -1", "client is -1; at least 0 is expected"),
        ('client = "0"', 'client is the text "0"; a whole number is expected'),
        ("client = true", "client is true; a whole number is expected"),
        ('server = "h"', 'server is the text "h"; HOST:PORT, such as fl.example.org:9092, is expected'),
        ("data = 3", "data is 3; text in quotes is expected"),
        ('allow.leaves = ["pictures"]', 'allow.leaves[0] is the text "pictures"; expected one of weights, masks'),
        ('allow.leaves = "weights"', 'allow.leaves is the text "weights"; a list is expected'),
        ('allow.experiments = ["00"]', "a digest of 64 digits 0-9 and a-f is expected"),
        ("limits.rounds = -1", "limits.rounds is -1; a number from 0 on, or inf, is expected"),
        ("limits.rounds = nan", "limits.rounds is nan"),
        ("limits = 3", "limits is 3; a table is expected"),
        ("insecure = false", "root_certificate is missing"),
        ('root_certificate = "ca.crt"', "insecure means no TLS, yet there is a root_certificate"),
        ("client = ", "is not valid TOML"),
    ],
)
def test_mistakes_in_a_policy_are_one_sentence(tmp_path, line, why):
    given = {"server": 'server = "h:1"', "client": "client = 0", "insecure": "insecure = true"}
    given[line.split(" ")[0]] = line
    (tmp_path / "device.toml").write_text("\n".join(given.values()))
    with pytest.raises(UserError) as error:
        Policy.load(tmp_path / "device.toml")
    assert why in str(error.value)
    assert str(tmp_path / "device.toml") in str(error.value)


@pytest.mark.parametrize("missing", ["server", "client"])
def test_server_and_client_are_needed(tmp_path, missing):
    given = {"server": 'server = "h:1"', "client": "client = 0", "insecure": "insecure = true"}
    del given[missing]
    (tmp_path / "device.toml").write_text("\n".join(given.values()))
    with pytest.raises(UserError, match=f"{missing} is missing"):
        Policy.load(tmp_path / "device.toml")


# ---- the command line


def invoke(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_init_writes_a_policy_once_and_shows_it(tmp_path):
    file = tmp_path / "device.toml"
    options = ("fl.example.org:9092", "--client-id", 3, "--insecure", "--data", tmp_path, "--allow", "features")
    done = invoke("join", *options, "--state", tmp_path / "s", "--policy", file, "--init")
    assert done.exit_code == 0, done.output
    assert 'server = "fl.example.org:9092"' in done.output
    written = Policy.load(file)
    assert (written.client, written.data, written.insecure) == (3, tmp_path, True)
    assert written.allow.leaves == (*Allow().leaves, "features")
    again = invoke("join", *options, "--policy", file, "--init")
    assert "exists already" in str(again.exception)
    assert "write it once by adding --init" in str(invoke("join", *options, "--policy", file).exception)


def test_init_needs_a_server_and_a_number(tmp_path):
    for options in ((), ("h:1",), ("--client-id", 3)):
        done = invoke("join", *options, "--insecure", "--policy", tmp_path / "device.toml", "--init")
        assert "--init needs the server's HOST:PORT and --client-id" in str(done.exception)


def test_without_a_policy_nothing_is_joined(tmp_path):
    assert "there is no policy" in str(invoke("join", "--policy", tmp_path / "device.toml").exception)


def test_a_policy_is_shown_in_plain_words_with_what_left(tmp_path):
    file = tmp_path / "device.toml"
    policy = insecure(tmp_path, allow=Allow(experiments=("0" * 64,)))
    policy.write(file)
    shown = invoke("policy", file).output
    assert not policy.state.exists()
    for part in (
        "Client 3 of fl.example.org:9092, not encrypted; runs must be signed by nobody.",
        "Is never sent:    features, labels, ids, images, unknown",
        f"Approved runs:    {'0' * 64}",
        "1,000 rounds of 1,000 requests",
        "Nothing has been sent so far.",
    ):
        assert part in shown
    assert invoke("policy", file, "--approve", "f" * 64).exit_code == 0
    log = SentLog(policy.state)
    log.note("ab" * 8, "hello", {"samples": 12}, 100)
    log.note("ab" * 8, "again", {}, 200)
    log.refused("ab" * 8, "hello", "too much")
    shown = invoke("policy", file).output
    assert f"{'0' * 64}, {'f' * 64}" in shown
    assert f"run {'ab' * 8}: 300 B in 2 answers" in shown
    assert "Refusals so far: 1; the last:" in shown
    assert "hello: too much" in shown
    assert "is not the digest of a run" in str(invoke("policy", file, "--approve", "f").exception)
