"""Lies about uploads, with numbers worked by hand."""

import json

import pytest
import torch
from torch import tensor
from worlds import experiment

import catchment
from catchment.errors import ExperimentError
from catchment.exchange.message import Message
from catchment.robust import LIE, OFOM, PAF, AttackPlan, SignFlip, lie_z

SEED = 7


def lie(attack, own, *honest, request=None, place=0, attackers=1):
    """What an attacker sends in place of `own`."""
    plan = AttackPlan(attack, (9,), SEED)
    others = {client: Message(tensors) for client, tensors in enumerate(honest)}
    return plan.lie(Message(own), others, Message(request or {}), place, attackers).tensors


def logits(*rows):
    return {"logits": tensor(rows)}


# Two honest clients, one public sample, two classes: mean [2, 6], deviation [1, 2].
OWN, HONEST = logits([50.0, 50.0]), (logits([1.0, 4.0]), logits([3.0, 8.0]))


# ---- the equations ----------------------------------------------------------------------------------------------


def test_lie_is_z_deviations_from_the_mean():
    """Equation 10 with z = 1.5: [2 + 1.5 * 1, 6 + 1.5 * 2]."""
    own, *honest = ({"features": message["logits"]} for message in (OWN, *HONEST))
    assert lie(LIE(z=1.5), own, *honest)["features"].tolist() == [[3.5, 9.0]]


def test_lie_raises_one_class_and_lowers_another():
    """Equation 10 adds 1.5 to both classes here, which no softmax sees; with a sign for each, one goes up."""
    honest = (logits([1.0, 4.0], [0.0, 0.0]), logits([3.0, 6.0], [2.0, 2.0]))  # means [2, 5] and [1, 1], deviations 1
    sent = lie(LIE(z=1.5), logits([0.0, 0.0], [0.0, 0.0]), *honest)["logits"]
    moved = sent - tensor([[2.0, 5.0], [1.0, 1.0]])
    assert sorted(moved[0].tolist()) == [-1.5, 1.5]
    assert torch.equal(moved[0], moved[1])  # the same classes for all samples


@pytest.mark.parametrize(("classes", "minuses"), [(1, 0), (2, 1), (5, 2), (10, 5)])
def test_half_of_the_classes_are_lowered(classes, minuses):
    honest = [{"logits": torch.zeros(1, classes)}, {"logits": torch.full((1, classes), 2.0)}]
    signs = lie(LIE(z=1.0), honest[0], *honest)["logits"] - 1
    assert signs.abs().eq(1).all()
    assert int(signs.eq(-1).sum()) == minuses


def test_paf_is_the_mean_and_a_vector_of_so_many_deviations():
    """Equation 7 with strength 10: [2, 6] plus or minus [10, 20]."""
    sent = lie(PAF(strength=10), OWN, *HONEST)["logits"]
    assert (sent - tensor([[2.0, 6.0]])).abs().tolist() == [[10.0, 20.0]]


def test_the_direction_of_paf_is_one_for_all_rounds_and_not_the_same_for_all_numbers():
    many = [{"logits": torch.zeros(5, 10)}, {"logits": torch.ones(5, 10)}]
    first, again = (lie(PAF(), many[0], *many)["logits"] for _ in range(2))
    assert torch.equal(first, again)
    assert set((first > 0.5).flatten().tolist()) == {True, False}


def test_with_a_sign_for_each_class_paf_moves_all_samples_one_way():
    """Two samples with deviations 1 and 2: 10 and 20 up in one class, as much down in the other."""
    honest = (logits([1.0, 4.0], [0.0, 0.0]), logits([3.0, 6.0], [4.0, 4.0]))  # means [2, 5] and [2, 2]
    sent = lie(PAF(strength=10, signs="classes"), logits([0.0, 0.0], [0.0, 0.0]), *honest)["logits"]
    moved = sent - tensor([[2.0, 5.0], [2.0, 2.0]])
    assert sorted(moved[0].tolist()) == [-10, 10]
    assert torch.equal(2 * moved[0], moved[1])
    far = lie(OFOM(strength=10, signs="classes"), logits([0.0, 0.0], [0.0, 0.0]), *honest, attackers=2)["logits"]
    assert torch.equal(far, sent)
    features = [{"features": message["logits"]} for message in honest]
    own = {"features": torch.zeros(2, 2)}
    apart = [lie(PAF(signs=signs), own, *features)["features"] for signs in ("numbers", "classes")]
    assert torch.equal(*apart)  # only logits have classes


def test_ofom_has_one_far_and_one_at_the_mean_of_all():
    """Equation 11: the second is (sum of the honest + the first) / 3."""
    far = lie(OFOM(strength=10), OWN, *HONEST, place=0, attackers=2)["logits"]
    mean = lie(OFOM(strength=10), OWN, *HONEST, place=1, attackers=2)["logits"]
    assert torch.equal(far, lie(PAF(strength=10), OWN, *HONEST)["logits"])
    assert torch.allclose(mean, (HONEST[0]["logits"] + HONEST[1]["logits"] + far) / 3)


def test_sign_flip_mirrors_the_change_of_what_was_sent():
    """Sent 5, trained to 7: the opposite is 5 - 2; three times as far, 5 - 6."""
    own, sent = {"weights/w": tensor([7.0])}, {"weights/w": tensor([5.0])}
    assert lie(SignFlip(), own, request=sent)["weights/w"].tolist() == [3.0]
    assert lie(SignFlip(strength=3), own, request=sent)["weights/w"].tolist() == [-1.0]
    assert lie(SignFlip(around="zero"), own, request=sent)["weights/w"].tolist() == [-7.0]
    assert lie(SignFlip(), own)["weights/w"].tolist() == [-7.0]


@pytest.mark.parametrize(
    ("honest", "attackers", "z"),
    [
        (16, 1, 0.0),  # s = 9 - 1 = 8, phi(z) = 8/16
        (15, 1, 0.0837),  # s = 8 - 1 = 7, phi(z) = 8/15
        (7, 1, 0.1800),  # s = 4 - 1 = 3, phi(z) = 4/7
        (14, 2, 0.1800),  # s = 8 - 2 = 6, phi(z) = 8/14
        (40, 10, 0.5978),  # s = 21 - 10 = 11, phi(z) = 29/40
        (3, 2, 0.0),  # s = 2 - 2 = 0: the attackers are a majority already
        (0, 1, 0.0),
    ],
)
def test_the_z_of_the_formula(honest, attackers, z):
    assert lie_z(honest, attackers) == pytest.approx(z, abs=1e-4)


def test_lie_says_the_z_that_it_uses_and_that_of_the_formula():
    assert LIE().numbers(16, 1) == {"z": 0.0, "z_formula": 0.0}
    assert LIE(z=1.5).numbers(16, 1) == {"z": 1.5, "z_formula": 0.0}


# ---- what is compared with what ---------------------------------------------------------------------------------


def test_rows_of_other_samples_are_not_averaged_place_by_place():
    """Features of private data: one mean and one deviation over all rows of the honest, for every row of the lie."""
    honest = (
        {"features": tensor([[0.0], [2.0]]), "ids": tensor([1, 2])},
        {"features": tensor([[4.0]]), "ids": tensor([3])},
    )
    own = {"features": tensor([[9.0], [9.0], [9.0]]), "ids": tensor([4, 5, 6])}
    sent = lie(LIE(z=1.0), own, *honest)
    assert torch.allclose(sent["features"], tensor([[2 + (8 / 3) ** 0.5]] * 3))
    assert torch.equal(sent["ids"], own["ids"])


def test_equal_sizes_do_not_make_samples_the_same():
    """Two rows each, but of other samples: the mean is 2 in both rows, not 1 and 3."""
    honest = [{"features": tensor([[0.0], [2.0]]), "ids": tensor([1, 2])}]
    honest += [{"features": tensor([[2.0], [4.0]]), "ids": tensor([3, 4])}]
    own = {"features": torch.zeros(2, 1), "ids": tensor([5, 6])}
    assert lie(LIE(z=0.0), own, *honest)["features"].tolist() == [[2.0], [2.0]]
    same = [{**message, "ids": own["ids"]} for message in honest]
    assert lie(LIE(z=0.0), own, *same)["features"].tolist() == [[1.0], [3.0]]


def test_an_attacker_alone_takes_its_own_rows():
    own = {"features": tensor([[1.0], [3.0]]), "labels": tensor([0, 1])}
    assert lie(LIE(z=1.0), own)["features"].tolist() == [[3.0], [3.0]]


def test_models_of_another_architecture_are_left_out_of_the_mean():
    own, other = {"weights/w": torch.zeros(2, 3)}, {"weights/w": torch.full((2, 4), 100.0)}
    alike = {"weights/w": torch.ones(2, 3)}
    assert torch.equal(lie(LIE(z=1.0), own, alike, other)["weights/w"], torch.ones(2, 3))


def test_empty_uploads_stay_empty():
    empty = {"features": torch.empty(0, 3), "ids": torch.empty(0, dtype=torch.int64)}
    for attack in (PAF(), LIE(z=1.0), OFOM(), SignFlip()):
        assert lie(attack, empty, empty, empty)["features"].shape == (0, 3)


def test_only_floating_point_numbers_that_fit_the_patterns_are_lies():
    own = {"features": tensor([[1.0]]), "logits": tensor([[1.0]]), "ids": tensor([4])}
    sent = lie(SignFlip(fields=("feat*",)), own)
    assert (sent["features"].item(), sent["logits"].item(), sent["ids"].item()) == (-1.0, 1.0, 4)
    half = lie(SignFlip(), {"w": tensor([2.0]).half()})["w"]
    assert (half.dtype, half.item()) == (torch.float16, -2.0)


def test_buffers_are_left_alone_unless_they_are_named():
    """Three deviations below a variance of 1 with deviation 1 would be -2, of which the root is NaN."""
    names = ("weights/bn.weight", "weights/bn.running_var", "weights/bn.running_mean", "buffers/bn.running_var")
    honest = [dict.fromkeys(names, tensor([0.0])), dict.fromkeys(names, tensor([2.0]))]
    own = dict.fromkeys(names, tensor([1.0]))

    def lied(*fields):
        return [name for name, sent in lie(LIE(z=-3, fields=fields), own, *honest).items() if sent.item() == -2.0]

    assert lied("*") == lied("weights/*") == lied("*bn*") == [names[0]]
    assert lied("*running_var") == [names[1], names[3]]
    assert lied("weights/*running_mean", "*weight") == [names[0], names[2]]
    assert lied("buffers/*") == [names[3]]
    for attack in (LIE(), PAF(), OFOM(), SignFlip()):
        assert attack.touches(names[0])
        assert not attack.touches(names[1])


# ---- who ---------------------------------------------------------------------------------------------------------


def test_attackers_are_drawn_with_the_seed_or_named():
    assert AttackPlan.draw(PAF(clients=(4, 2)), 5, SEED).attackers == (2, 4)
    drawn = AttackPlan.draw(PAF(clients=3), 100, SEED).attackers
    assert drawn == AttackPlan.draw(LIE(clients=3), 100, SEED).attackers
    assert drawn != AttackPlan.draw(PAF(clients=3), 100, SEED + 1).attackers
    assert len(set(drawn)) == 3


@pytest.mark.parametrize("clients", [0, 5, (), (1, 1), (5,), (-1,)])
def test_impossible_attackers(clients):
    with pytest.raises(ExperimentError, match=r"attack\.clients is"):
        AttackPlan.draw(PAF(clients=clients), 5, SEED)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "paff"}, 'unknown attack "paff"; did you mean "paf"?'),
        ({"name": "paf", "z": 1.0}, 'unknown key "attack.z"'),
        ({"name": "paf", "strength": -1}, r"attack\.strength is -1"),
        ({"name": "sign-flip", "around": "corner"}, "expected one of request, zero"),
        ({"name": "paf", "clients": 9}, r"attack\.clients is 9; from 1 to 4 of 5"),
    ],
)
def test_mistakes_in_a_file(table, message):
    with pytest.raises(ExperimentError, match=message):
        experiment("fedavg", attack=table).build_world()


@pytest.mark.parametrize("attack", ["lie", "ofom", "paf"])
def test_attackers_of_an_asynchronous_method_cannot_see_the_others(attack):
    with pytest.raises(
        ExperimentError, match=f'"{attack}", which is made from the honest replies to the same question'
    ):
        experiment("fedgkt, asynchronous", attack={"name": attack}).build_world()


def test_an_attack_can_be_switched_off():
    again = catchment.Experiment.from_dict(experiment("fedavg, lied to").to_dict(), {"attack.name": "none"})
    assert again.attack == {"name": "none"}
    assert again.build_attack_plan() is None


# ---- in a run ----------------------------------------------------------------------------------------------------


def events(out):
    records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    return [(record["round"], event) for record in records for event in record["events"]]


def test_a_run_says_who_lied_and_how_strongly(tmp_path):
    more = {"rounds": 2, "participation": {"fraction": 1.0}, "attack": {"name": "lie", "clients": [1], "z": 1.5}}
    result = catchment.run(experiment("fedavg", **more), tmp_path)
    formula = lie_z(4, 1)
    assert result["attack"]["attackers"] == [1]
    assert result["attack"]["used"] == [{"z": 1.5, "z_formula": formula}]
    assert [(number, event["client"], event["what"]) for number, event in events(tmp_path)] == [
        (1, 1, "attacked"),
        (2, 1, "attacked"),
    ]
    assert events(tmp_path)[0][1]["why"] == f"z 1.5, z_formula {formula:.4g}; saw 4 honest replies"


def test_bytes_and_time_are_those_of_honest_replies(tmp_path):
    honest = catchment.run(experiment("fedgkt"), tmp_path / "honest")
    lied = catchment.run(experiment("fedgkt", attack={"name": "paf", "clients": 2}), tmp_path / "lied")
    assert (lied["bytes"], lied["virtual_seconds"]) == (honest["bytes"], honest["virtual_seconds"])
    assert lied["fingerprint"] != honest["fingerprint"]


def test_evaluation_is_not_attacked(tmp_path):
    catchment.run(experiment("fedgkt", attack={"name": "sign-flip", "clients": 2}), tmp_path)
    assert {event["handler"] for _, event in events(tmp_path)} == {"local_training"}
