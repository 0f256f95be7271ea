"""What reports say of models that accuracy flatters, and of who gains."""

import pytest

from catchment.report import gains, markdown_table
from catchment.report.page import html_report
from catchment.report.showing import MISSING
from catchment.report.verdicts import constant_answer, fallen, not_beaten, shared_headline
from catchment.runs.reading import RunFiles
from catchment.runs.records import ByClient

SCORES = {"balanced_accuracy": 0.5, "macro_f1": 0.375, "worst_recall": 0.0, "auroc": 0.7, "majority": 0.5}
CLASSES = {"name": "pneumoniamnist", "clients": 3, "classes": ["normal", "pneumonia"]}
KNOWN = {"scores": SCORES, "recall": [0.0, 1.0], "confusion": [[0.0, 1.0], [0.0, 1.0]], "data": CLASSES}


@pytest.fixture
def measured(make_run, parts):
    """Writes and reads a run that measured more than accuracy."""

    def make(name, *, headline=None, method=None, accuracies=None, **changes):
        rounds = [{**parts.round(n, accuracy=a), "scores": {**SCORES}} for n, a in ((1, 0.25), (3, 0.5))]
        by_client = accuracies and {
            "clients": [0, 1, 2], "samples": [10, 20, 30], "accuracy": accuracies, "balanced_accuracy": accuracies
        }  # fmt: skip
        path = make_run(name, rounds=rounds, result={**KNOWN, "by_client": by_client, **changes})
        toml = (path / "experiment.toml").read_text()
        if method:
            toml = toml.replace('"fedavg"', f'"{method}"')
        if headline:
            toml += f'\n[evaluation]\nheadline = "{headline}"\n'
        (path / "experiment.toml").write_text(toml)
        return RunFiles.read(path)

    return make


def test_a_model_that_does_not_beat_the_majority_is_named(measured):
    same, better = measured("same"), measured("better", scores={**SCORES, "majority": 0.4375})
    sentence = "same: an accuracy of 50.00 % does not beat always answering the most frequent class, 50.00 %."
    assert not_beaten([same, better]) == [sentence]
    assert sentence in html_report([same, better])
    assert "does not beat" not in html_report([better])


def test_a_run_that_fell_says_so_and_what_usually_helps(measured):
    run = measured("down", fall={"from_round": 1, "by": 0.125})
    (sentence,) = fallen([run])
    assert sentence == (
        "down: accuracy falls after round 1, by 12.50 points to 50.00 % at the end; what usually helps: a rate that "
        'falls (optimizer.client.schedule.name = "cosine"), a moving average (evaluation.average), or fewer rounds.'
    )
    assert "accuracy falls after round 1, by 12.50 points" in html_report([run])
    assert fallen([measured("up")]) == []


def test_what_helps_fedgkt_where_classes_are_dealt_unevenly(measured):
    run = measured("down", method="fedgkt", fall={"from_round": 1, "by": 0.125})
    assert fallen([run])[0].endswith("a lower rate of the extractors (method.extractor_rate), or fewer rounds.")
    toml = (run.directory / "experiment.toml").read_text()
    (run.directory / "experiment.toml").write_text(toml.replace('"fedgkt"', '"fedgkt"\ndistill = "both"'))
    quieter = '(method.extractor_rate), method.distill = "server-to-edge", or fewer rounds.'
    assert fallen([RunFiles.read(run.directory)])[0].endswith(quieter)


def test_a_calibration_error_that_rises(measured):
    more = {**SCORES, "calibration_error": 0.25}
    run = measured("worse", headline="calibration_error", scores=more, fall={"from_round": 2, "by": 0.0625})
    assert fallen([run])[0].startswith("worse: calibration error rises after round 2, by 6.25 points to 25.00 %")


def test_clients_that_do_not_beat_it_are_counted(measured):
    run = measured("run", scores={**SCORES, "majority": 0.4375}, accuracies=[0.4375, 0.4, 0.7])
    assert not_beaten([run]) == [
        "run: the models of 2 of 3 clients do not beat always answering the most frequent class, 43.75 %."
    ]


def test_runs_of_earlier_versions_say_nothing_of_it(make_run):
    run = RunFiles.read(make_run())
    assert (run.headline, not_beaten([run]), constant_answer(run.outcome, "accuracy")) == ("accuracy", [], None)
    page = html_report([run])
    assert "Class by class" not in page
    assert "majority" not in page


def test_the_table_has_the_majority_and_the_headline_first(measured, make_run):
    heads = markdown_table([measured("a")]).splitlines()[0]
    assert "| accuracy % | majority % |" in heads
    heads, _, row = markdown_table([measured("b", headline="balanced_accuracy")]).splitlines()
    assert "| balanced accuracy % | accuracy % | majority % |" in heads
    assert "| 50.00 | 50.00 | 50.00 |" in row


def test_a_headline_that_a_run_did_not_measure_is_not_one(measured, make_run):
    auroc, old = measured("auroc", headline="auroc"), RunFiles.read(make_run("old"))
    assert shared_headline([auroc]) == "auroc"
    assert shared_headline([auroc, measured("other")]) == "accuracy"
    assert shared_headline([auroc, old]) == "accuracy"


def test_what_a_constant_answer_reaches(measured):
    run = measured("run", scores={**SCORES, "majority": 0.6})
    found = {
        name: constant_answer(run.outcome, name) for name in ("accuracy", "balanced_accuracy", "macro_f1", "auroc")
    }
    assert found == {"accuracy": 0.6, "balanced_accuracy": 0.5, "macro_f1": pytest.approx(0.375), "auroc": 0.5}
    assert constant_answer(run.outcome, "worst_recall") is None


def test_the_best_calibration_error_is_the_lowest(measured):
    run = measured("run", headline="calibration_error", scores={**SCORES, "calibration_error": 0.2})
    for record, error in zip(run.rounds, (0.125, 0.2)):
        record.scores["calibration_error"] = error
    page = html_report([run])
    assert "best 12.50 % in round 1" in page
    assert 'aria-label="Calibration error per round"' in page
    assert constant_answer(run.outcome, "calibration_error") is None


def test_classes_are_named_with_their_recall_and_drawn(measured):
    page = html_report([measured("run", headline="auroc")])
    assert '<td class="text">normal</td><td class="number">0.00</td>' in page
    assert "run never recognises normal." in page
    assert 'aria-label="Confusion matrix"' in page
    assert "most frequent class, always" in page  # in the legend of the accuracy
    assert 'aria-label="AUROC per round"' in page
    assert 'aria-label="AUROC against bytes"' in page
    assert "data:image/png;base64," in page


# ---- who gains --------------------------------------------------------------------------------------------------


def by_client(**samples_and_accuracies):
    """`c3=(10, 0.5)`: client 3 has 10 samples and reaches 0.5."""
    samples, accuracy = zip(*samples_and_accuracies.values())
    numbers = [int(name[1:]) for name in samples_and_accuracies]
    return ByClient(clients=numbers, samples=list(samples), accuracy=list(accuracy), balanced_accuracy=list(accuracy))


def test_gains_by_hand():
    alone = by_client(c0=(10, 0.2), c1=(40, 0.6), c2=(30, 0.5), c3=(None, 0.1))
    run = by_client(c0=(10, 0.5), c1=(40, 0.5), c3=(None, 0.9), c4=(50, 0.9))
    found = gains.gains("run", run, alone)
    assert found.samples == [10, 40]
    assert found.points == pytest.approx([0.3, -0.1])
    cells = {column.title: column.cells[0] for column in gains.columns([found])}
    assert cells == {
        "run": "run", "clients that gain": "1 of 2", "least gain": "-10.00", "mean gain": "+10.00",
        "largest gain": "+30.00", "mean, smaller half": "+30.00", "mean, larger half": "-10.00",
    }  # fmt: skip


def test_other_data_are_not_compared():
    assert gains.gains("run", by_client(c0=(20, 0.5)), by_client(c0=(10, 0.2))) is None


def test_halves_of_equal_clients_say_nothing():
    found = gains.Gains("run", [10, 10], [0.1, 0.2])
    assert [column.cells[0] for column in gains.columns([found])][-2:] == [MISSING, MISSING]


def test_a_report_shows_gains_where_a_stand_alone_run_is_beside(measured):
    alone = measured("alone", method="standalone", accuracies=[0.25, 0.5, 0.5])
    each, one = measured("each", accuracies=[0.5, 0.5, 0.25]), measured("one")
    page = html_report([alone, each, one])
    assert "What clients gain" in page
    assert '<td class="text">each</td><td class="number">1 of 3</td><td class="number">-25.00</td>' in page
    assert '<td class="text">one</td><td class="number">1 of 3</td><td class="number">+0.00</td>' in page  # one for all
    assert "What clients gain" not in html_report([each, one])
    assert "What clients gain" not in html_report([alone])
