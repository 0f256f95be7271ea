"""The summary, in the terminal and in Markdown."""

import io

import pytest
from rich.console import Console

from catchment.report import markdown_table, summary_table
from catchment.report.page import html_report
from catchment.runs.reading import RunFiles


def shown(table, width=200):
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(table)
    return console.file.getvalue()


def cells(markdown):
    head, _, *rows = [line.strip("| \n").split(" | ") for line in markdown.splitlines()]
    return [dict(zip(head, row)) for row in rows]


@pytest.fixture
def runs(make_run, parts):
    finished = make_run(
        "finished",
        result={
            "accuracy": 0.54515,
            "bytes": {"up": 1536, "down": 3 * 1024**2, "evaluation": 100},
            "seconds": 65.0,
            "lost": 13,
            "late": 2,
            "failed": 1,
        },
    )
    unfinished = make_run("unfinished", result=None, planned=8)
    return [RunFiles.read(finished), RunFiles.read(unfinished)]


def test_numbers(runs):
    assert cells(markdown_table(runs)) == [
        {
            "run": "finished",
            "method": "fedavg",
            "accuracy %": "54.52",
            "clients %": "37.50 \N{EN DASH} 62.50",
            "rounds": "3",
            "bytes up": "1.50 KiB",
            "bytes down": "3.00 MiB",
            "bytes to evaluate": "100 B",
            "wall time": "1 min 05 s",
            "lost, late, failed, refused": "13, 2, 1, 0",
        },
        {
            "run": "unfinished",
            "method": "fedavg",
            "accuracy %": "50.00",
            "clients %": "37.50 \N{EN DASH} 62.50",
            "rounds": "3 of 8",
            "bytes up": "1.76 KiB",
            "bytes down": "900 B",
            "bytes to evaluate": "0 B",
            "wall time": "1.50 s",
            "lost, late, failed, refused": "0, 0, 0, 0",
        },
    ]


def test_the_terminal_shows_the_same_but_the_bytes_of_evaluation(runs):
    text = shown(summary_table(runs))
    for row in cells(markdown_table(runs)):
        line = next(line for line in text.splitlines() if line.startswith(row["run"]))
        del row["bytes to evaluate"]  # no room for it
        assert line.split() == " ".join(row.values()).split()


def test_virtual_time_only_where_a_run_has_it(make_run, runs):
    timed = RunFiles.read(make_run("timed", result={"virtual_seconds": 9000.0}))
    assert [row["virtual time"] for row in cells(markdown_table([runs[0], timed]))] == ["0 s", "2 h 30 min"]
    assert "virtual time" not in markdown_table(runs)
    assert "virtual" in shown(summary_table([timed]))
    assert "virtual" not in shown(summary_table(runs))


def real(directory):
    """The run in a directory as one of real machines."""
    toml = directory / "experiment.toml"
    toml.write_text(toml.read_text().replace("\n\n", '\nengine = "flower"\n\n', 1))
    return RunFiles.read(directory)


def test_real_machines_have_real_time(make_run, parts):
    rounds = [parts.round(1, accuracy=0.25, virtual_seconds=60.0), parts.round(2, accuracy=0.5, virtual_seconds=120.0)]
    timed = {"rounds": rounds, "result": {"virtual_seconds": 120.0}}
    here, there = RunFiles.read(make_run("here", **timed)), real(make_run("there", **timed))
    assert [row["real time"] for row in cells(markdown_table([there]))] == ["2 min 00 s"]
    assert "virtual time or real time" in markdown_table([here, there])
    page = html_report([there])
    assert all(words in page for words in ("real time", "on real machines", "Real time per round"))
    assert "simulated" not in page
    assert "virtual" not in page.lower()
    assert "Virtual time per round" in html_report([here])


def test_equal_clients_are_one_number_and_no_clients_none(make_run):
    equal = make_run("equal", result={"clients": {"accuracy": {"mean": 0.5, "min": 0.5, "max": 0.5}}})
    without = make_run("without", result={"clients": None})
    rows = cells(markdown_table([RunFiles.read(equal), RunFiles.read(without)]))
    assert [row["clients %"] for row in rows] == ["50.00", "\N{EN DASH}"]


def test_a_run_without_any_round(make_run):
    run = RunFiles.read(make_run(rounds=None, ledger=None, result=None))
    (row,) = cells(markdown_table([run]))
    assert (row["accuracy %"], row["clients %"], row["rounds"]) == ("\N{EN DASH}", "\N{EN DASH}", "0 of 3")


def test_a_name_is_shown_as_it_is_written(make_run):
    run = RunFiles.read(make_run(name="[red]a|b[/] <b>\x1b[31m"))
    text = shown(summary_table([run]))
    assert "[red]a|b[/] <b>�[31m" in text
    assert "\x1b" not in text
    assert r"\[red\]a\|b\[/\] \<b\>�\[31m" in markdown_table([run])


def test_narrow_terminals_lose_nothing(runs):
    text = shown(summary_table(runs), width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "54.52" in text


def test_what_clients_said_of_themselves_is_marked(make_run):
    said = make_run("said", result={"self_reported": ["accuracy", "clients"]})
    runs = [RunFiles.read(said), RunFiles.read(make_run("measured"))]
    assert [row["self-reported"] for row in cells(markdown_table(runs))] == ["accuracy, clients", "\N{EN DASH}"]
    assert "self-reported" in shown(summary_table(runs))
    assert "self-reported" not in shown(summary_table(runs[1:]))
