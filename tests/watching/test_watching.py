"""Runs while they run: what is read from their files, and the page that shows it."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request

import pytest
from rich.console import Console

import catchment
from catchment import Experiment
from catchment.errors import UserError
from catchment.runs.presence import Presence, read_presence
from catchment.watching.server import page, watching
from catchment.watching.status import Status, client_details, details, find_runs, overview
from catchment.watching.terminal import watch_in_terminal

SETTINGS = {
    "name": "seen", "rounds": 4, "workers": 1, "models": {"client": "mlp(16)"},
    "data": {"clients": 3, "train": 90, "test": 30},
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A finished run, and one that stopped after two of its rounds."""
    place = tmp_path_factory.mktemp("runs")
    for name in ("done", "half"):
        catchment.run(Experiment.from_dict(SETTINGS), out=place / name)
    half = place / "half"
    (half / "result.json").unlink()
    lines = (half / "rounds.jsonl").read_text().splitlines()
    first, second = (json.loads(line) for line in lines[:2])
    for number, record in enumerate((first, second), start=1):
        record["seconds"] = float(number)
        record["events"] = [{"what": "late", "client": 2, "handler": "train", "why": "slow"}]
    second["events"].append({"what": "refused", "client": 0, "handler": "train", "why": "<b>NaN</b>"})
    (half / "rounds.jsonl").write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n" + '{"round": 3, "by')
    return place


def test_time_left_is_that_of_the_last_rounds(place):
    status = Status.read(place / "half")
    assert (len(status.rounds), status.planned) == (2, 4)  # half a line is not a round
    assert status.seconds_left == 2.0 * 2  # not the first, which warms up
    assert Status.read(place / "done").seconds_left == 0.0


def test_a_finished_run_that_fell_says_so(place, tmp_path):
    shutil.copytree(place / "done", tmp_path / "done")
    assert details(tmp_path / "done")["fall"] == ""
    result = json.loads((tmp_path / "done" / "result.json").read_text())
    (tmp_path / "done" / "result.json").write_text(json.dumps({**result, "fall": {"from_round": 2, "by": 0.25}}))
    assert details(tmp_path / "done")["fall"].startswith("accuracy falls after round 2, by 25.00 points")
    shown = io.StringIO()
    watch_in_terminal(tmp_path / "done", Console(file=shown, width=100))
    assert "accuracy falls after round 2, by 25.00 points" in shown.getvalue()


def test_runs_are_found_alone_and_below(place):
    assert list(find_runs(place)) == ["done", "half"]
    assert list(find_runs(place / "done")) == ["done"]
    assert find_runs(place / "nowhere") == {}
    assert overview(place)["runs"]["half"]["done"] == 2


def test_trouble_that_lasts_says_since_when(place):
    clients = {row["client"]: row for row in details(place / "half")["clients"]}
    assert clients.keys() == {0, 2}
    assert (clients[2]["trouble"]["since"], clients[2]["trouble"]["round"]) == (1, 2)
    assert (clients[0]["trouble"]["what"], clients[0]["trouble"]["since"]) == ("refused", 2)


def test_the_bytes_of_one_client_are_those_of_the_ledger(place):
    whole = Status.read(place / "done")
    sent = [client_details(place / "done", client)["rounds"] for client in range(3)]
    for number, record in enumerate(whole.rounds):
        assert sum(own[number]["up"] for own in sent) == record.bytes.up
        assert sum(own[number]["down"] for own in sent) == record.bytes.down


def test_a_clients_events_are_not_lost_among_those_of_others(place, monkeypatch):
    monkeypatch.setattr("catchment.watching.status.EVENTS", 1)
    (running,) = (run for run in find_runs(place).values() if not Status.read(run).finished)
    assert len(details(running)["events"]) == 1
    assert [client_details(running, client)["events"][0]["what"] for client in (0, 2)] == ["refused", "late"]


def test_presence_says_since_when(tmp_path, monkeypatch):
    clock = iter([100.0, 100.1, 103.0])
    monkeypatch.setattr("catchment.runs.presence.time.time", lambda: next(clock))
    presence = Presence(tmp_path)
    presence.note({0: "connected", 1: "away"})
    presence.note({0: "working", 1: "away"})  # too soon to be written
    assert read_presence(tmp_path)["clients"]["0"] == {"state": "connected", "since": 100.0}
    presence.note({0: "working", 1: "away"})
    assert read_presence(tmp_path)["clients"] == {
        "0": {"state": "working", "since": 100.1},
        "1": {"state": "away", "since": 100.0},
    }


def test_nobody_knows_who_is_there_when_the_server_is_silent(place):
    file = place / "half" / "clients.json"
    try:
        for ago, state in ((1.0, "working"), (60.0, "unknown")):
            seen = {"written": time.time() - ago, "clients": {"1": {"state": "working", "since": time.time() - 90}}}
            file.write_text(json.dumps(seen))
            (row,) = [row for row in details(place / "half")["clients"] if row["client"] == 1]
            assert row["state"] == state
    finally:
        file.unlink()


def test_the_page_says_what_a_federation_waits_for(place, tmp_path):
    shutil.copytree(place / "half", tmp_path / "half")
    Presence(tmp_path / "half", "d1ge57").note({0: "connected", 1: "waits for approval"})
    found = details(tmp_path / "half")
    (sentence,) = found["helps"]
    assert sentence.endswith("catchment policy --approve d1ge57")
    assert found["clients"][1]["state"] == "waits for approval"
    shown = io.StringIO()
    watch_in_terminal(tmp_path / "half", Console(file=shown, width=150))
    assert sentence in shown.getvalue()
    assert details(place / "half")["helps"] == []


def test_a_presence_that_cannot_be_written_is_no_error(tmp_path):
    Presence(tmp_path / "nowhere").note({0: "away"})
    assert read_presence(tmp_path) is None


def get(address, path="", **headers):
    base, _, query = address.partition("?")
    url = f"{base}{path}" + (f"{'&' if '?' in path else '?'}{query}" if query else "")
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
        return answer.read().decode(), answer.headers


def refused(*arguments, **headers):
    with pytest.raises(urllib.error.HTTPError) as error:
        get(*arguments, **headers)
    with error.value:
        return error.value.code


def test_the_headline_is_shown_beside_what_a_constant_answer_reaches(tmp_path):
    settings = {**SETTINGS, "rounds": 2, "evaluation": {"headline": "macro_f1"}}
    result = catchment.run(Experiment.from_dict(settings), out=tmp_path / "run")
    found = details(tmp_path / "run")
    majority, classes = result["scores"]["majority"], sum(recall is not None for recall in result["recall"])
    assert (found["headline"], found["share"]) == ("macro F1", result["scores"]["macro_f1"])
    assert found["rounds"][-1]["share"] == result["scores"]["macro_f1"]
    assert found["constant"] == pytest.approx(2 * majority / (1 + majority) / classes)
    assert found["accuracy"] == result["accuracy"]
    console = Console(file=io.StringIO(), width=160)
    watch_in_terminal(tmp_path, console)
    assert f"macro F1 {100 * found['share']:.2f} % (a constant answer: {100 * found['constant']:.2f} %)" in (
        console.file.getvalue()
    )


def test_a_headline_that_was_not_measured_is_not_shown(place, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(place / "done", run)
    (run / "experiment.toml").write_text(
        (run / "experiment.toml").read_text().replace('headline = "accuracy"', 'headline = "auroc"')
    )
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    (run / "rounds.jsonl").write_text("".join(json.dumps({**line, "scores": {}}) + "\n" for line in lines))
    found = details(run)
    assert (found["headline"], found["share"], found["constant"]) == ("accuracy", lines[-1]["accuracy"], None)


def test_every_client_has_a_page_and_nobody_else(place):
    assert details(place / "done")["number_of_clients"] == 3
    with pytest.raises(UserError, match="there is no client 3; the run has clients 0 to 2"):
        client_details(place / "done", 3)


def test_the_page_and_its_answers(place):
    with watching(place) as address:
        page, headers = get(address)
        assert "<main" in page
        assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http-", "")  # works offline
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert json.loads(get(address, "runs")[0])["runs"].keys() == {"done", "half"}
        assert json.loads(get(address, "run?run=half")[0])["done"] == 2
        assert json.loads(get(address, "client?run=half&client=2")[0])["trouble"]["what"] == "late"
        assert refused(address, "run?run=../other") == 404
        assert refused(address, "client?run=half&client=x") == 404


def test_nothing_can_be_changed(place):
    with watching(place) as address:
        request = urllib.request.Request(address.replace("?", "runs?"), data=b"x", method="POST")
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(request)
        with error.value:
            assert error.value.code == 405


def test_nothing_is_shown_without_the_token_on_loopback_either(place):
    with watching(place) as address:
        bare, _, token = address.partition("?token=")
        assert len(token) == 32
        for path in ("", "runs", "run?run=half", "client?run=half&client=2"):
            assert refused(bare, path) == 403
        assert refused(bare, "runs?token=wrong") == refused(bare, "runs?token=%C3%A9") == 403


def test_a_port_that_is_taken_is_a_sentence(place):
    with watching(place) as address:
        port = int(address.rpartition(":")[2].partition("/")[0])
        with pytest.raises(UserError, match="the page cannot be served"), watching(place, port=port):
            pytest.fail("it was served")


def test_the_terminal_shows_the_same(place):
    console = Console(file=io.StringIO(), width=120)
    watch_in_terminal(place / "half", console)
    watch_in_terminal(place, console)
    text = console.file.getvalue()
    for words in ("2 of 4 rounds", "4.00 s", "late", "1 to 2", "<b>NaN</b>", "finished"):
        assert words in text


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
@pytest.mark.parametrize(
    ("points", "kind", "beside", "below"),
    [
        ("[[1, 0.12], [6, 0.98]]", "SHARES", ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"], [*"123456"]),
        ("[[1, 0.971], [2, 0.984]]", "SHARES", ["97 %", "97.5 %", "98 %", "98.5 %"], ["1", "2"]),
        ("[[5, 0.5], [10, 0.5]]", "SHARES", ["50 %"], [*"56789", "10"]),
        ("[[1, 0], [2, 71000]]", "SIZES", ["0 B", "20.0 KiB", "40.0 KiB", "60.0 KiB", "80.0 KiB"], ["1", "2"]),
    ],
)  # fmt: skip
def test_curves_have_axes(points, kind, beside, below):
    script = page().partition("<script>")[2].partition("</script>")[0]
    drawing = script[script.index("const BYTES") : script.index("const percent")]
    drawing += script[script.index("function stepOf") : script.index("function cards")]
    stubs = """
        const make = (tag, attributes = {}, ...children) => ({...attributes, children});
        const draw = () => ({append() {}});
        const texts = part => part.children.filter(child => child.style).map(child => child.children[0]);
    """
    ask = f"const [plot] = curve({points}, '', {kind}).children;"
    ask += "console.log(JSON.stringify(plot.children.filter(part => part.children).map(texts)))"
    shown = subprocess.run(["node", "-e", stubs + drawing + ask], capture_output=True, text=True, check=True).stdout
    assert json.loads(shown) == [beside, below]
