"""What the figures show: the numbers on their axes, not their looks."""

from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from catchment.report import figures
from catchment.report.figures import drawings
from catchment.runs.reading import RunFiles


def drawn(drawing):
    axes = Figure().add_subplot()
    drawing.draw(axes)
    return axes


def lines(axes):
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines}


def bars(axes, along="height"):
    """Label -> length of its bars."""
    return {
        group.get_label(): [getattr(bar, f"get_{along}")() for bar in group]
        for group in axes.containers
    }  # fmt: skip


def texts(svg):
    return ["".join(element.itertext()) for element in ElementTree.fromstring(svg).iter("text")]


@pytest.fixture
def run(make_run):
    return RunFiles.read(make_run())


@pytest.fixture
def eventful(make_run, parts):
    rounds = [
        parts.round(1, accuracy=0.25, virtual_seconds=60.0, events=[parts.event("lost"), parts.event("late")]),
        parts.round(2, accuracy=0.5, virtual_seconds=180.0, events=[parts.event("lost")]),
    ]
    return RunFiles.read(make_run("eventful", rounds=rounds, planned=2))


def test_accuracy_of_one_run(run):
    axes = drawn(figures.accuracy_per_round([run]))
    assert lines(axes) == {"server": ([1, 3], [25, 50]), "clients, mean": ([1, 3], [25, 50])}
    (band,) = axes.collections
    low, high = band.get_paths()[0].get_extents().intervaly
    assert (low, high) == (12.5, 62.5)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "accuracy (%)")


def test_accuracy_of_a_method_without_server_or_clients(make_run, parts):
    rounds = [{**parts.round(number, accuracy=number / 4), "server": None, "clients": None} for number in (1, 2)]
    bare = RunFiles.read(make_run("bare", rounds=rounds))
    (line,) = drawn(figures.accuracy_per_round([bare])).lines
    assert list(line.get_ydata()) == [25, 50]


def test_no_band_where_clients_are_equal(make_run, parts):
    record = parts.round(1, accuracy=0.5)
    record["clients"]["accuracy"] = {"mean": 0.5, "min": 0.5, "max": 0.5}
    axes = drawn(figures.accuracy_per_round([RunFiles.read(make_run(rounds=[record], planned=1))]))
    assert len(axes.collections) == 0


def test_accuracy_of_several_runs_in_one_axes(run, eventful):
    axes = drawn(figures.accuracy_per_round([run, eventful]))
    assert lines(axes) == {"run": ([1, 3], [25, 50]), "eventful": ([1, 2], [25, 50])}
    first, second = axes.lines
    assert first.get_color() != second.get_color()
    assert first.get_linestyle() != second.get_linestyle()


def test_bytes_are_summed_over_rounds_without_evaluation(make_run, parts):
    rounds = [parts.round(1, up=1024, down=1024, evaluation=10**9), parts.round(2, accuracy=0.5, up=2048, down=0)]
    axes = drawn(figures.accuracy_per_byte([RunFiles.read(make_run(rounds=rounds, planned=2))]))
    assert lines(axes) == {"run": ([4.0], [50])}
    assert axes.get_xlabel() == "training bytes so far (KiB)"


def test_runs_of_very_different_sizes_get_a_logarithmic_axis(make_run, parts):
    small = RunFiles.read(make_run("small", rounds=[parts.round(1, accuracy=0.5, up=1000, down=24)], planned=1))
    near = RunFiles.read(make_run("near", rounds=[parts.round(1, accuracy=0.5, up=4096, down=0)], planned=1))
    large = RunFiles.read(make_run("large", rounds=[parts.round(1, accuracy=0.5, up=1024**2, down=0)], planned=1))
    assert drawn(figures.accuracy_per_byte([small, near])).get_xscale() == "linear"
    axes = drawn(figures.accuracy_per_byte([small, large]))
    assert axes.get_xscale() == "log"
    assert lines(axes) == {"small": ([1024], [50]), "large": ([1024**2], [50])}
    labels = texts(figures.bytes_per_round([small, large]).svg())
    assert {"1 KiB", "64 KiB", "1 MiB"} <= set(labels)


def test_bytes_per_round_by_direction_and_purpose(make_run, parts):
    ledger = [
        {"round": 1, "entries": [parts.entry("up", [0, 1], {"a": 100, "(framing)": 28})]},
        {
            "round": 2,
            "entries": [parts.entry("down", [2], {"a": 64}), parts.entry("down", [0], {"a": 32}, purpose="evaluation")],
        },
    ]
    axes = drawn(figures.bytes_per_round([RunFiles.read(make_run(ledger=ledger))]))
    assert bars(axes) == {"training, up": [256, 0], "training, down": [0, 64], "evaluation, down": [0, 32]}
    assert axes.get_ylabel() == "bytes (B)"


def test_bytes_per_client_shows_those_who_had_none(run):
    axes = drawn(figures.bytes_per_client(run))
    assert bars(axes) == {"training, up": [900 / 1024, 900 / 1024, 0], "training, down": [450 / 1024, 450 / 1024, 0]}


def test_bytes_by_tensor(run):
    axes = drawn(figures.bytes_by_tensor(run))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["weights/a", "weights/b", "(framing)"]
    assert bars(axes, "width") == {
        "up": [600 / 1024, 900 / 1024, 300 / 1024],
        "down": [600 / 1024, 0, 300 / 1024],
    }
    assert axes.get_xlabel() == "bytes of the whole run (KiB)"


def test_many_tensors_are_the_largest_the_framing_and_the_others(make_run, parts):
    tensors = {f"tensor{number}": 100 + number for number in range(20)} | {"(framing)": 1}
    run = RunFiles.read(make_run(ledger=[{"round": 1, "entries": [parts.entry("up", [0], tensors)]}]))
    axes = drawn(figures.bytes_by_tensor(run))
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == [*(f"tensor{number}" for number in range(19, 8, -1)), "(framing)", "(others: 9)"]
    assert sum(bars(axes, "width")["up"]) == sum(tensors.values())


def test_events_by_kind(eventful):
    axes = drawn(figures.events_per_round([eventful]))
    assert bars(axes) == {"lost": [1, 1], "late": [1, 0]}


def test_virtual_time_is_that_of_each_round(eventful):
    axes = drawn(figures.time_per_round([eventful]))
    assert bars(axes) == {"virtual time": [1.0, 2.0]}
    assert axes.get_ylabel() == "virtual time (min)"
    axes = drawn(figures.accuracy_per_second([eventful]))
    assert lines(axes) == {"eventful": ([1.0, 3.0], [25, 50])}


def test_runs_without_events_or_virtual_time_are_left_out_there(run, eventful):
    for make in (figures.events_per_round, figures.time_per_round):
        assert list(lines(drawn(make([run, eventful])))) == ["eventful"]


def test_no_numbers_no_figure(make_run, run):
    empty = RunFiles.read(make_run("empty", rounds=None, ledger=None, result=None))
    assert drawings([empty]) == []
    assert drawings([empty, empty]) == []
    titles = [drawing.title for drawing in drawings([run])]
    assert "Accuracy per round" in titles
    assert "Lost, late, failed and refused replies" not in titles
    assert "Virtual time per round" not in titles


def test_every_figure_of_long_runs_stays_small(make_run, parts):
    rounds = [
        parts.round(n, accuracy=0.5, virtual_seconds=float(n), events=[parts.event("lost")]) for n in range(1, 1001)
    ]
    ledger = [{"round": n, "entries": [parts.entry("up", range(500), {"a": n})]} for n in range(1, 1001)]
    run = RunFiles.read(make_run(rounds=rounds, ledger=ledger, planned=1000))
    found = drawings([run])
    assert len(found) == 8
    assert all(len(drawing.svg()) < 100_000 for drawing in found)


def test_svg_is_an_element_for_a_page(run):
    svg = drawings([run])[0].svg("mine")
    root = ElementTree.fromstring(svg)
    assert root.tag == "svg"
    assert root.get("aria-label") == "Accuracy per round"
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert ids
    assert all(name.startswith("mine-") for name in ids)
    references = [part.split(")")[0] for part in svg.split("url(#")[1:]] + [
        element.get("href")[1:] for element in root.iter() if element.get("href")
    ]
    assert references
    assert set(references) <= set(ids)
    assert "http" not in svg


@pytest.mark.parametrize("name", ["$x_1$ <b>&\"' \x00\x1b", "_hidden", "深い学習", "$\\frac{"])
def test_any_name_can_be_in_a_figure(make_run, run, name):
    other = RunFiles.read(make_run("other", name=name))
    labels = texts(figures.accuracy_per_round([run, other]).svg())
    wanted = name.replace("\x00", "�").replace("\x1b", "�")
    assert wanted in [label.strip() for label in labels]


def test_notes_of_a_method_are_drawn_round_by_round(make_run, parts):
    rounds = [
        {**parts.round(1), "notes": {"self_training": 3, "wanted": 7}},
        parts.round(2),
        {**parts.round(3), "notes": {"self_training": 9}},
    ]
    run = RunFiles.read(make_run("noted", rounds=rounds))
    assert lines(drawn(figures.notes_per_round(run))) == {"self training": ([1, 3], [3, 9]), "wanted": ([1], [7])}
    assert figures.notes_per_round(RunFiles.read(make_run("silent"))) is None


def test_numbers_that_are_not_finite_are_left_out_of_figures(make_run, parts):
    rounds = [
        {**parts.round(1), "notes": {"norm": float("inf"), "gap": float("nan")}},
        {**parts.round(2), "notes": {"norm": 2}},
    ]
    run = RunFiles.read(make_run("noted", rounds=rounds))
    assert lines(drawn(figures.notes_per_round(run))) == {"norm": ([2], [2])}


def test_many_clients_are_a_histogram(make_run, parts):
    entries = [parts.entry("up", range(150), {"a": 10}), parts.entry("down", [7, 7, 300], {"a": 10})]
    run = RunFiles.read(make_run(ledger=[{"round": 1, "entries": entries}]))
    drawing = figures.bytes_per_client(run)
    assert drawing.note == (
        "Of 301 clients 151 had traffic, each from 10 B to 30 B, up and down together; 150 had none."
    )
    (steps,) = drawn(drawing).patches
    counts, edges, _ = steps.get_data()
    assert (edges[0], edges[-1]) == (10, 30)
    assert (counts[0], counts[-1], counts.sum()) == (150, 1, 151)
