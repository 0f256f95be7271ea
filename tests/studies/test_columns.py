"""Columns and tables of a study, from results made by hand."""

import csv
import io
from dataclasses import replace

import pytest
from rich.console import Console

from catchment.errors import ExperimentError
from catchment.report.showing import MISSING
from catchment.runs.records import ByClient
from catchment.studies import tables
from catchment.studies.columns import cell, check, head
from catchment.studies.page import page
from catchment.studies.results import RowResult, RunResult, StudyResult, read_run


def run(seed, accuracy, up=2048, curve=()):
    numbers = {"accuracy": accuracy, "bytes.up": up, "edge_accuracy": accuracy / 2, "seconds": 65.0}
    return RunResult(seed, f"d{seed}", numbers, [list(point) for point in curve])


def study(*rows, **settings):
    columns = settings.pop("columns", ("accuracy",))
    return StudyResult("s", "small", "A study", (0, 1, 2), columns, list(rows), **settings)


FIRST = RowResult("first", 93.2, {}, [run(0, 0.50), run(1, 0.52), run(2, 0.54)])
BETTER = RowResult("better", None, {}, [run(0, 0.70, 1024), run(1, 0.73, 1024), run(2, 0.73, 1024)])


@pytest.mark.parametrize(
    ("row", "column", "text"),
    [
        (FIRST, "accuracy", "52.0 ± 2.0"),
        (FIRST, "paper", "93.2"),
        (BETTER, "paper", MISSING),
        (FIRST, "bytes.up", "2.00 KiB"),
        (FIRST, "seconds", "1 min 05 s"),
        (FIRST, "edge_accuracy", "26.0 ± 1.0"),
        (BETTER, "difference", "+20.0 [+17.5, +22.5]"),
        (FIRST, "difference", MISSING),
        (BETTER, "bytes.up / reference", "0.5"),
    ],
)
def test_a_cell(row, column, text):
    assert cell(study(FIRST, BETTER, reference="first"), row, column).text == text


def test_the_cost_of_an_accuracy_is_read_from_the_curve():
    row = RowResult(
        "r", None, {}, [run(0, 0.6, curve=[(1, 0.3, 10, 4, 1.0), (2, 0.41, 20, 8, 2.5), (3, 0.6, 30, 9, 3.0)])]
    )
    result = study(row)
    texts = [cell(result, row, f"{what} to 40 %").text for what in ("bytes", "up", "rounds", "time")]
    assert texts == ["20 B", "8 B", "2", "2.50 s"]
    assert cell(result, row, "bytes to 99 %").text == MISSING


def test_the_largest_fall_is_from_one_evaluation_to_the_next():
    falls = [
        (1, 0.50, 1, 1, 0.0),
        (2, 0.44, 2, 2, 0.0),
        (3, None, 3, 3, 0.0),
        (4, 0.60, 4, 4, 0.0),
        (5, 0.56, 5, 5, 0.0),
    ]
    rises = [(1, 0.3, 1, 1, 0.0), (2, 0.4, 2, 2, 0.0)]
    row = RowResult("r", None, {}, [run(0, 0.56, curve=falls), run(1, 0.4, curve=rises), run(2, 0.4, curve=rises[:1])])
    assert cell(study(row), row, "largest fall").numbers == pytest.approx(
        (0.06, 0.0)
    )  # the last run has one evaluation
    assert cell(study(row), row, "largest fall").text == "3.0 ± 4.2 (2 of 3 seeds)"
    errors = study(row, headline="calibration_error")  # of which a rise is a fall
    assert cell(errors, row, "largest fall").numbers == pytest.approx((0.16, 0.1))


def test_a_mean_says_when_some_seeds_have_no_number():
    reached, missed = ([(1, accuracy, 2048, 4, 1.0)] for accuracy in (0.5, 0.3))
    row = RowResult("r", None, {}, [run(0, 0.5, curve=reached), run(1, 0.3, curve=missed)])
    assert cell(study(row), row, "bytes to 40 %").text == "2.00 KiB (1 of 2 seeds)"


def test_a_column_of_one_architecture_has_its_name():
    assert head("models.lenet(8,16,2)") == "lenet(8,16,2), %"
    assert head("server.AP50") == "AP50, %"


def test_the_best_row_is_bold_only_beyond_doubt():
    close = RowResult("close", None, {}, [run(0, 0.53), run(1, 0.50), run(2, 0.55)])
    assert cell(study(FIRST, BETTER), BETTER, "accuracy").best
    assert not cell(study(FIRST, close), close, "accuracy").best
    assert not cell(study(FIRST, BETTER), FIRST, "accuracy").best
    single = [RowResult(label, None, {}, [run(0, value)]) for label, value in (("a", 0.1), ("b", 0.9))]
    assert not cell(study(*single), single[1], "accuracy").best


def test_the_forms_of_a_table():
    result = study(FIRST, BETTER, columns=("accuracy", "paper"))
    assert tables.markdown(result).splitlines() == [
        "|  | accuracy, % | paper |",
        "| --- | ---: | ---: |",
        "| first | 52.0 ± 2.0 | 93.2 |",
        "| better | **72.0 ± 1.7** | \N{EN DASH} |",
    ]
    assert "better & \\textbf{72.0 $\\pm$ 1.7} & " in tables.latex(result)
    assert "<td><b>72.0 ± 1.7</b></td>" in tables.html_table(result)
    lines = tables.comma_separated(result).splitlines()
    assert lines[0] == "row,seed,paper,accuracy,bytes.up,edge_accuracy,seconds"
    assert lines[1] == "first,0,93.2,0.5,2048,0.25,65.0"
    assert len(lines) == 7


def test_signs_that_mean_something_are_escaped():
    result = study(RowResult("a|b & <c>_", None, {}, [run(0, 0.5)]))
    assert r"a\|b & \<c>_" in tables.markdown(result)
    assert r"a\textbar{}b \& \textless{}c\textgreater{}\_" in tables.latex(result)
    assert "a|b &amp; &lt;c&gt;_" in tables.html_table(result)


def test_an_axis_can_lie_across():
    rows = [
        RowResult(f"{data}, {method}", paper, {"data": data, "method": method}, [run(0, accuracy)])
        for data, method, accuracy, paper in [("A", "x", 0.1, 1), ("A", "y", 0.2, 2), ("B", "x", 0.3, None)]
    ]
    assert tables.markdown(study(*rows, across="method", columns=("accuracy", "paper"))).splitlines()[0::2] == [
        "| accuracy, % (paper) | x | y |",
        "| A | 10.0 (1) | 20.0 (2) |",
    ]


@pytest.mark.parametrize(("scale", "title"), [("small", "T (small)"), ("paper", "T")])
def test_the_title_names_a_scale_other_than_that_of_the_file(scale, title):
    result = replace(study(FIRST), title="T", scale=scale)
    assert str(tables.text(result).title) == title
    assert ("Scale: small." in page(result)) == (scale == "small")


def test_rows_that_failed_or_are_missing_say_so():
    failed, missing = RowResult("f", failed={0: "no data"}), RowResult("m")
    result = study(FIRST, failed, missing)
    assert [cell(result, row, "accuracy").text for row in (failed, missing)] == ["failed", MISSING]


def test_an_unknown_column_is_refused_with_the_nearest():
    with pytest.raises(ExperimentError, match='unknown column "acuracy"; did you mean "accuracy"'):
        tables.grid(study(FIRST, columns=("acuracy",)))


def test_results_go_to_a_file_and_back(tmp_path):
    result = study(FIRST, RowResult("f", failed={0: "no data"}), reference="first", note="n")
    result.write(tmp_path / "r.json")
    assert StudyResult.read(tmp_path / "r.json") == result


def test_a_number_that_only_some_methods_have_is_a_dash_for_the_others():
    other = RowResult("other", None, {}, [RunResult(0, "d", {"accuracy": 0.5}, [])])
    assert cell(study(other, columns=("edge_accuracy",)), other, "edge_accuracy").text == MISSING
    assert tables.grid(study(other, columns=("edge_accuracy",))).heads == ["", "edge model, %"]


@pytest.mark.parametrize("column", ["bytes to 80%", "bytes to 80", "accuracy/reference", "loss in round 1st"])
def test_a_form_that_is_misspelt_is_refused_before_there_are_results(column):
    with pytest.raises(ExperimentError, match=f'unknown column "{column}"; such columns are "bytes to 80 %"'):
        check([column])


def test_an_accuracy_of_just_the_goal_reaches_it():
    row = RowResult("r", None, {}, [run(0, 0.482, curve=[(1, 0.482, 2048, 4, 1.0)])])
    assert 48.2 / 100 > 0.482  # what a division would ask for
    assert cell(study(row), row, "bytes to 48.2 %").text == "2.00 KiB"


def test_brackets_are_no_markup_on_a_terminal():
    result = study(RowResult("[/x] a", None, {"m": "[/y]"}, [run(0, 0.5)]), across="m")
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(tables.text(replace(result, title="A [/bold] study")))
    shown = console.export_text()
    assert "A [/bold] study" in shown
    assert "[/y]" in shown


def test_an_axis_can_lie_across_a_choice_of_rows_without_it():
    row = RowResult("alone", None, {}, [run(0, 0.5)])
    assert tables.markdown(study(row, across="m")).splitlines()[-1] == "| alone | 50.0 |"


def test_a_label_stays_in_its_cell():
    result = study(RowResult("[1]\n*b* \\x", None, {}, [run(0, 0.5)]))
    assert r"| [1] \*b\* \\x |" in tables.markdown(result)
    assert r"{[}1] *b* \textbackslash{}x &" in tables.latex(result)
    (line,) = csv.DictReader(io.StringIO(tables.comma_separated(result)))
    assert line["row"] == "[1]\n*b* \\x"


# ---- what accuracy hides ----------------------------------------------------------------------------------------


def judged(seed, accuracy, method="fedavg", **more):
    numbers = {"accuracy": accuracy, "majority": 0.625, "balanced_accuracy": accuracy / 2, "auroc": 0.8, **more}
    return replace(run(seed, accuracy), numbers=numbers, method=method)


def test_columns_name_metrics():
    row = RowResult("r", None, {}, [judged(0, 0.6), judged(1, 0.7)])
    result = study(row, columns=("balanced_accuracy", "auroc", "majority"))
    assert [cell(result, row, column).text for column in result.columns] == ["32.5 ± 3.5", "80.0 ± 0.0", "62.5 ± 0.0"]
    assert [head(column) for column in result.columns] == ["balanced accuracy, %", "AUROC, %", "majority class, %"]


def test_differences_are_of_the_headline():
    first, second = RowResult("a", None, {}, [judged(0, 0.6)]), RowResult("b", None, {}, [judged(0, 0.6, auroc=0.9)])
    result = study(first, second, reference="a", headline="auroc")
    assert cell(result, second, "difference").text == "+10.0 (one seed)"


def test_a_calibration_error_is_the_better_the_lower_it_is():
    curve = [[1, 0.3, 10, 4, 1.0], [2, 0.1, 20, 8, 2.5]]
    runs, better = (
        [replace(judged(seed, 0.6, calibration_error=error + seed / 100), curve=curve) for seed in (0, 1)]
        for error in (0.2, 0.1)
    )
    first, second = RowResult("a", None, {}, runs), RowResult("b", None, {}, better)
    result = study(first, second, columns=("calibration_error", "rounds to 10 %"), headline="calibration_error")
    assert [cell(result, row, "calibration_error").best for row in (first, second)] == [False, True]
    assert cell(result, first, "rounds to 10 %").numbers == (2, 2)  # the first round whose error is at most this


def test_rows_that_do_not_beat_the_majority_are_named():
    flat = RowResult("flat", None, {}, [judged(0, 0.625), judged(1, 0.7)])
    good = RowResult("good", None, {}, [judged(0, 0.9)])
    result = study(flat, good, FIRST)
    sentence = "flat: the accuracy does not beat always answering the most frequent class, 62.5 % in 1 of 2 seeds."
    assert tables.not_beaten(result) == [sentence]
    assert sentence in page(result)


def test_a_page_shows_who_gains_over_training_alone():
    alone = [replace(judged(seed, 0.5, "standalone"), by_client=client_accuracies([0.25, 0.5])) for seed in (0, 1)]
    each = [replace(judged(seed, 0.6), by_client=client_accuracies([0.5, 0.5])) for seed in (0, 1)]
    text = page(study(RowResult("alone", None, {}, alone), RowResult("each", None, {}, each)))
    assert '<td class="text">each</td><td class="number">2 of 4</td>' in text  # two clients, two seeds
    assert "What clients gain" not in page(study(RowResult("each", None, {}, each)))


def client_accuracies(accuracies):
    return ByClient(clients=[0, 1], samples=[10, 20], accuracy=accuracies, balanced_accuracy=[None, None])


def test_by_client_survives_the_file(tmp_path):
    result = study(RowResult("each", None, {}, [replace(judged(0, 0.6), by_client=client_accuracies([0.5, 0.25]))]))
    result.write(tmp_path / "s.json")
    assert StudyResult.read(tmp_path / "s.json") == result


def test_what_the_inversion_probe_rebuilt_is_that_of_the_worst_round(make_run):
    def likeness(share):
        return {"correlation": share, "psnr": 100 * share, "ssim": share / 2, "identified": share / 4}

    def probed(weak, strong):
        attacks = {"decoder": likeness(strong), "optimisation": likeness(weak)}
        return {"client": 0, "images": 4, "private": 8, "best": "decoder", "attacks": attacks}

    numbers = read_run(make_run(result={"probe": [probed(0.1, 0.8), probed(0.2, 0.4)]}), 0, "x").numbers
    found = {name: numbers[f"probe.{name}"] for name in ("correlation", "psnr", "ssim", "identified")}
    assert found == {"correlation": 0.8, "psnr": 80.0, "ssim": 0.4, "identified": 0.2}
    assert not any(name.startswith("probe") for name in read_run(make_run("other"), 0, "x").numbers)
