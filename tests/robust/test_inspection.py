"""Who stands out, with numbers worked by hand."""

import json

import pytest
import torch
from torch import tensor
from worlds import experiment

import catchment
from catchment.errors import ExperimentError
from catchment.exchange.message import Message
from catchment.reading import read_table
from catchment.robust.inspection import Inspection

LOOK = Inspection(action="flag", samples=1)


def upload(scale=1.0, labels=(0, 1), disagree=False):
    """Two samples, one of each class, whose features are unit vectors, and logits that point to their labels."""
    features, classes = torch.eye(2) * scale, tensor(labels)
    logits = torch.eye(2)[1 - classes if disagree else classes]
    return Message({"features": features, "logits": logits, "labels": classes})


def reasons(*uploads, inspection=LOOK, known=None):
    return inspection.judge(dict(enumerate(uploads)), known or {})[0]


def test_nobody_stands_out_among_equals():
    assert reasons(*[upload()] * 5) == {}


def test_features_that_are_too_large_or_too_small():
    """Rows of norm 3 among norm 1: log 3 = 1.0986, over a deviation of at least 0.1 that is +11.0. So is a third."""
    said = reasons(upload(), upload(), upload(3.0), upload())
    assert list(said) == [2]
    assert "size of features 3, others 1 (+11.0 deviations)" in said[2]
    assert "variety of features 2.12, others 0.707 (+11.0 deviations)" in said[2]
    assert "(-11.0 deviations)" in reasons(upload(), upload(), upload(1 / 3), upload())[2]


def test_features_without_variety():
    same = Message({"features": torch.full((2, 2), 0.5**0.5), "labels": tensor([0, 1])})
    said = reasons(upload(), upload(), same, upload())
    assert list(said) == [2]
    assert "variety of features" in said[2]
    assert "size of features" not in said[2]


def test_classes_that_lie_elsewhere():
    """Seen from the middle, classes are at plus and minus [0.5, -0.5]; with labels exchanged they are 2 norms away."""
    said = reasons(upload(), upload(), upload(labels=(1, 0)), upload())
    assert said == {2: "classes of features 2, others 0 (+20.0 deviations)"}


def test_logits_that_disagree_with_labels():
    said = reasons(upload(), upload(), upload(disagree=True), upload())
    assert said == {2: "disagreement of logits with labels 1, others 0 (+10.0 deviations)"}


def test_logits_of_public_samples_that_disagree_with_the_others():
    """Labels do not travel with them: the median of all says what is right."""
    right, wrong = Message({"logits": torch.eye(4)}), Message({"logits": torch.eye(4).flip(1)})
    assert reasons(right, wrong, right, right) == {
        1: "disagreement of logits with others 1, others 0 (+10.0 deviations)"
    }


def test_the_usual_deviation_is_that_of_half_of_the_others():
    """Sizes e^0, e^1, e^2, e^3 and e^9: of the first four the median is 1.5, deviations 1.5, 0.5, 0.5, 1.5; 1 is usual.

    1.4826 deviations of 1 make one, so 9 is (9 - 1.5) / 1.4826 = 5.06 away.
    """
    messages = [Message({"features": torch.eye(2) * torch.tensor(float(power)).exp()}) for power in (0, 1, 2, 3, 9)]
    assert list(reasons(*messages)) == [4]
    assert "(+5.1 deviations)" in reasons(*messages)[4]
    assert reasons(*messages, inspection=Inspection(threshold=5.1, samples=1)) == {}


def test_too_few_others_or_samples_judge_nobody():
    assert reasons(upload(), upload(), upload(3.0)) == {}
    assert reasons(upload(), upload(), upload(3.0), inspection=Inspection(others=2, samples=1)).keys() == {2}
    assert reasons(*[upload()] * 3, upload(3.0), inspection=Inspection(samples=3)) == {}


def test_who_comes_alone_is_compared_with_what_the_others_sent_last():
    known = LOOK.judge({client: upload() for client in range(4)}, {})[1]
    said, profiles = LOOK.judge({9: upload(3.0)}, known)
    assert list(said) == [9]
    assert profiles.keys() == {0, 1, 2, 3, 9}


def test_small_uploads_are_looked_at_together():
    """A window of 8 samples: after 2 of norm 1, 2 of norm 3 make a mean of (0.75 * 2 * 1 + 2 * 3) / 3.5 = 2.14."""
    inspection = Inspection(samples=1, window=8)
    known = inspection.judge({client: upload() for client in range(5)}, {})[1]
    said = inspection.judge({4: upload(3.0)}, known)[0]
    assert "size of features 2.14, others 1" in said[4]
    forgetful = Inspection(samples=1, window=2)
    assert "size of features 3, others 1" in forgetful.judge({4: upload(3.0)}, known)[0][4]


def test_classes_that_come_later_are_added():
    inspection = Inspection(samples=1, window=100)
    one = Message({"features": torch.eye(2)[:1], "labels": tensor([3])})
    other = Message({"features": torch.eye(2)[1:], "labels": tensor([1])})
    profile = inspection.judge({0: other}, inspection.judge({0: one}, {})[1])[1][0]
    assert profile["labels"].tolist() == [1, 3]
    assert profile["counts"].tolist() == pytest.approx([1.0, 0.99])


def test_what_holds_no_features_and_no_logits_is_left_alone():
    strange = [
        Message({"weights/w": torch.ones(3)}),
        Message({"features": torch.empty(0, 2), "labels": torch.empty(0, dtype=torch.int64)}),
        Message({"features": torch.full((2, 2), torch.nan), "labels": tensor([0, 1])}),
        Message({"logits": tensor(1.0)}),
    ]
    assert LOOK.judge(dict(enumerate(strange)), {}) == ({}, {})


def test_labels_of_any_size_take_no_more_memory():
    hostile = Message({"features": torch.eye(2), "labels": tensor([-(2**62), 2**62])})
    assert LOOK.judge({0: hostile}, {})[1][0]["labels"].tolist() == [-(2**62), 2**62]


@pytest.mark.parametrize("setting", [{"others": 1}, {"threshold": -1}, {"window": 0}, {"samples": 0}])
def test_impossible_settings(setting):
    with pytest.raises(ExperimentError, match="at least"):
        read_table(Inspection, setting)


def test_methods_that_send_neither_features_nor_logits_refuse_it():
    with pytest.raises(ExperimentError, match="clients of fedavg send neither features nor logits"):
        experiment("fedavg", inspection={"action": "flag"}).build_world()
    experiment("fedmd", inspection={"action": "flag"}).build_world()


# ---- in a run ----------------------------------------------------------------------------------------------------

ALL = {"participation": {"fraction": 1.0}, "rounds": 2}
LIARS = {"attack": {"name": "lie", "clients": [1], "z": 3.0}}


def flagged(out):
    records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    return [(r["round"], e["client"], e["why"]) for r in records for e in r["events"] if e["what"] == "flagged"]


@pytest.mark.parametrize("name", ["fedgkt", "splitfed"])
def test_a_liar_is_flagged_or_dropped(name, tmp_path):
    inspection = {"action": "flag", "samples": 8}
    kept = catchment.run(experiment(name, **ALL, **LIARS, inspection=inspection), tmp_path / "kept")
    assert 1 in {client for _, client, _ in flagged(tmp_path / "kept")}
    assert kept["refused"] == 0
    dropped = catchment.run(
        experiment(name, **ALL, **LIARS, inspection={**inspection, "action": "drop"}), tmp_path / "dropped"
    )
    whys = [why for _, client, why in flagged(tmp_path / "dropped") if client == 1]
    assert whys
    assert all(why.endswith("; dropped") for why in whys)
    assert dropped["refused"] >= len(whys)
    assert dropped["fingerprint"] != kept["fingerprint"]


def test_looking_changes_nothing(tmp_path):
    plain = catchment.run(experiment("fedgkt", **ALL), tmp_path / "plain")
    seen = catchment.run(experiment("fedgkt", **ALL, inspection={"action": "flag", "threshold": 1}), tmp_path / "seen")
    assert flagged(tmp_path / "seen")
    assert seen["fingerprint"] == plain["fingerprint"]
