"""What accuracy hides: worked by hand, and compared with scikit-learn."""

import pytest
import torch

from catchment.tasks import quality
from catchment.tasks.quality import Answers, auroc, calibration_error, mean

metrics = pytest.importorskip("sklearn.metrics")


def judged(logits, labels, batch=3):
    logits, labels = torch.as_tensor(logits, dtype=torch.float32), torch.as_tensor(labels)
    answers = Answers()
    for start in range(0, len(labels), batch):
        answers.add(logits[start : start + batch], labels[start : start + batch])
    return answers.judged()


def test_a_constant_answer_by_hand():
    """Five samples of class 0, three of class 1; everything is taken for class 0."""
    found = judged([[1.0, 0.0]] * 8, [0, 0, 0, 0, 0, 1, 1, 1])
    assert (found.accuracy, found.majority) == (0.625, 0.625)
    assert found.balanced_accuracy == 0.5
    assert found.worst_recall == 0.0
    assert found.macro_f1 == pytest.approx((2 * 0.625 / 1.625 + 0) / 2)
    assert found.auroc == 0.5  # all scores are equal
    assert found.recall == [1.0, 0.0]
    assert found.confusion == [[1.0, 0.0], [1.0, 0.0]]


def test_auroc_by_hand():
    """Of 2 x 2 pairs of a positive and a negative sample, the positive one has the higher score in 2 and a tie in 1."""
    scores = torch.tensor([[0.8, 0.2], [0.5, 0.5], [0.5, 0.5], [0.3, 0.7]], dtype=torch.float64)
    assert auroc(scores, torch.tensor([0, 1, 0, 1])) == (1 + 1 + 1 + 0.5) / 4
    assert auroc(scores, torch.tensor([1, 0, 1, 0])) == (0 + 0 + 0 + 0.5) / 4
    assert auroc(scores, torch.tensor([0, 0, 0, 0])) is None


def test_calibration_error_by_hand():
    """Two answers with confidence 0.9, one right: a gap of 0.8; two with 0.5, one right: none. Over 4 samples: 0.2."""
    confidences = torch.tensor([0.9, 0.9, 0.5, 0.5], dtype=torch.float64)
    assert calibration_error(confidences, torch.tensor([True, False, True, False])) == pytest.approx(0.2)
    assert calibration_error(torch.ones(3, dtype=torch.float64), torch.tensor([True, True, True])) == 0.0


@pytest.mark.parametrize(("samples", "classes"), [(101, 2), (300, 7)])
def test_all_numbers_are_those_of_scikit_learn(samples, classes):
    generator = torch.Generator().manual_seed(samples)
    logits = torch.randn(samples, classes, generator=generator).round(decimals=1)  # some are equal
    labels = torch.randint(0, classes, (samples,), generator=generator).clamp(max=classes - 1)
    found = judged(logits, labels, batch=64)
    answers, scores = logits.argmax(1), logits.double().softmax(1)
    assert found.accuracy == metrics.accuracy_score(labels, answers)
    assert found.balanced_accuracy == pytest.approx(metrics.balanced_accuracy_score(labels, answers))
    assert found.macro_f1 == pytest.approx(metrics.f1_score(labels, answers, average="macro"))
    wanted = scores[:, 1] if classes == 2 else scores
    assert found.auroc == pytest.approx(metrics.roc_auc_score(labels, wanted, multi_class="ovr"))
    rates = torch.from_numpy(metrics.confusion_matrix(labels, answers, normalize="true")).float()
    assert torch.allclose(found.rates, rates)


def test_a_class_without_samples_counts_for_nothing():
    found = judged([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [0, 1])
    assert (found.balanced_accuracy, found.macro_f1, found.worst_recall, found.auroc) == (1.0, 1.0, 1.0, 1.0)
    assert found.recall == [1.0, 1.0, None]


def test_scores_that_are_not_finite_leave_out_what_needs_them():
    found = judged([[float("nan"), 0.0], [0.0, 1.0]], [0, 1])
    assert (found.auroc, found.calibration_error) == (None, None)
    assert set(found.numbers()) == {"balanced_accuracy", "macro_f1", "worst_recall", "majority"}


def test_no_samples():
    assert Answers().judged().numbers() == {}


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(quality, "MOST_SCORES", 7)
    assert judged([[1.0, 0.0]] * 4, [0, 1, 0, 1]).auroc is None
    monkeypatch.setattr(quality, "MOST_CLASSES", 1)
    found = judged([[1.0, 0.0]] * 4, [0, 1, 0, 1])
    assert (found.rates, found.recall, found.balanced_accuracy) == (None, [], 0.5)


def test_the_mean_over_models():
    """A class that one model was not tested with has the recall of the others."""
    first, second = judged([[1.0, 0.0]] * 2, [0, 1]), judged([[0.0, 1.0]] * 2, [0, 0])
    both = mean([first, second])
    assert both.accuracy == (0.5 + 0.0) / 2
    assert both.majority == (0.5 + 1.0) / 2
    assert both.auroc == 0.5  # of the first alone: the second had one class
    assert both.confusion == [[0.5, 0.5], [1.0, 0.0]]
    assert mean([]) is None
