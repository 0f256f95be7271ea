"""FedGKT whose extractors stop training: what is frozen, what goes up in which turn, what the server makes of it."""

from __future__ import annotations

import json

import pytest
import torch
from worlds import experiment

import catchment
from catchment.core.replies import Reply
from catchment.core.serve import serve
from catchment.core.server import Server
from catchment.core.versions import Versions
from catchment.core.worker import WorkerCache
from catchment.errors import ExperimentError
from catchment.exchange.request import Request
from catchment.families.stems import first_weights
from catchment.methods.fedgkt import FedGKT, Feedback, Knowledge

EVERYBODY = {"participation": {"fraction": 1.0}}
AUGMENT = {"data": {"augment": ["crop", "flip"]}}


def frozen(few=True, **options):
    """A world of clients with the `cnn`, whose images are augmented."""
    more = {key: options.pop(key) for key in ("models", "rounds", "evaluation", "devices", "faults") if key in options}
    return experiment("fedgkt", few=few, method={"name": "fedgkt", **options}, **EVERYBODY, **AUGMENT, **more)


class Device:
    """Client 0, turn by turn."""

    def __init__(self, **options):
        self.world = frozen(**options).build_world()
        self.versions = Versions()
        self.cache = WorkerCache()

    def turn(self, number, upload=True, **told):
        feedback = Feedback(upload=upload, turn=number, **told)
        request = Request(0, "local_training", number, 0, number, feedback.pack())
        response = serve(self.world, request, self.versions, self.cache)
        assert response.error == ""
        self.macs = response.macs
        return Knowledge.unpack(response.body)

    def state(self, group="model"):
        return self.versions.newest(10**6)[group]

    def extractor(self, group="model"):
        return {name: tensor for name, tensor in self.state(group).items() if name.startswith("extractor.")}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def features_of(world, weights, samples, flip=False):
    """By hand: of plain images."""
    model = world.client_architecture(0).build()
    model.load_state_dict(weights)
    images = world.normalise(samples.images[samples.index])
    with torch.no_grad():
        return model.eval().extractor(images.flip(3) if flip else images)


# ---- the client -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["cnn", "resnet4"])  # without and with batch normalisation
@pytest.mark.parametrize("trained", [0, 1, 2])
def test_only_the_head_trains_after_some_turns(trained, model):
    device = Device(freeze_after=trained, models={"client": model})
    before = first_weights(device.world, 0, None)
    for turn in range(1, 5):
        device.turn(turn)
        after = device.state()
        moved = {name for name in after if not torch.equal(after[name], before[name])}
        assert any(name.startswith("classifier.") for name in moved)
        assert any(name.startswith("extractor.") for name in moved) is (turn <= trained)
        assert ("extractor" in device.versions.newest(99)) is (turn >= trained)
        before = after
    assert same(device.extractor(), device.extractor("extractor"))


def test_final_features_are_of_plain_images_and_of_their_mirror_images():
    device = Device(freeze_after=2, mirror=True)
    samples = device.world.private(0)
    first = device.turn(1)
    assert first.mirrored is None
    assert not torch.allclose(first.features, features_of(device.world, device.state(), samples), atol=1e-3)
    final = device.turn(2)
    assert torch.equal(final.ids, samples.ids)
    assert torch.allclose(final.features, features_of(device.world, device.state(), samples), atol=1e-5)
    assert torch.allclose(final.mirrored, features_of(device.world, device.state(), samples, flip=True), atol=1e-5)
    again = device.turn(3)  # the server lost them: they are the same
    assert torch.equal(again.features, final.features)
    assert torch.equal(again.mirrored, final.mirrored)
    assert not torch.equal(again.logits, final.logits)  # the head has learned
    small = device.turn(4, upload=False, holds=3)
    assert (len(small.ids), small.mirrored, small.turn, small.beside) == (0, None, 4, 3)


def test_the_small_model_goes_on_beside_the_frozen_extractor():
    device = Device(freeze_after=1, edge="model")
    final = device.turn(1)
    kept = device.extractor("extractor")
    assert same(kept, device.extractor())
    again = device.turn(2)
    assert same(kept, device.extractor("extractor"))
    assert not same(kept, device.extractor())
    assert torch.equal(again.features, final.features)
    model = device.world.client_architecture(0).build()
    model.load_state_dict(device.state())
    samples = device.world.private(0)
    with torch.no_grad():
        logits = model.eval()(device.world.normalise(samples.images[samples.index]))
    assert torch.allclose(again.logits, logits, atol=1e-4)  # of the small model, not of its head on other features


def test_a_settled_client_may_do_nothing():
    device = Device(freeze_after=0, edge="none")
    first = device.turn(1)
    before = device.state()
    assert not same(before, first_weights(device.world, 0, None))  # its head trained once, so that there are logits
    again = device.turn(2)  # asked once more, because the upload was lost
    assert same(device.state(), before)
    assert torch.equal(again.logits, first.logits)


def test_a_client_that_missed_the_last_turn_of_training_is_frozen_as_it_is():
    device = Device(freeze_after=2)
    device.turn(1)
    kept = device.extractor()
    device.turn(3)  # what was asked in turn 2 never came
    assert same(device.extractor(), kept)
    assert same(device.extractor("extractor"), kept)


def test_a_frozen_extractor_costs_one_forward_pass():
    device = Device(freeze_after=1)
    device.turn(1, upload=False)
    samples, macs = len(device.world.private(0)), device.world.client_architecture(0).facts.macs
    assert device.macs == samples * 3 * (macs["extractor"] + macs["classifier"])
    device.turn(2, upload=False)
    assert device.macs == samples * (macs["extractor"] + 3 * macs["classifier"])


# ---- what goes up -----------------------------------------------------------------------------------------------


def sent(out, field):
    """Bytes of a field in training, round by round."""
    rows = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
    return [
        sum(
            len(entry["clients"]) * entry["tensors"].get(field, 0)
            for entry in row["entries"]
            if entry["direction"] == "up" and entry["purpose"] == "training"
        )
        for row in rows
    ]


ALL = 100 * 16 * 4 * 4 * 4  # bytes of the features of all samples


@pytest.mark.parametrize(
    ("options", "features", "mirrored"),
    [
        ({"freeze_after": 0}, [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]),
        ({"freeze_after": 1, "mirror": True}, [1, 0, 0, 0, 0], [1, 0, 0, 0, 0]),
        ({"freeze_after": 2, "mirror": True}, [1, 1, 0, 0, 0], [0, 1, 0, 0, 0]),
        ({"freeze_after": 2, "mirror": True, "augment_features": False}, [1, 1, 0, 0, 0], [1, 1, 0, 0, 0]),
        ({"freeze_after": 4, "upload_every": 2}, [1, 0, 1, 1, 0], [0, 0, 0, 0, 0]),
        ({"freeze_after": 3, "skip_below": 1e6, "augment_features": False}, [1, 0, 1, 0, 0], [0, 0, 0, 0, 0]),
        ({"mirror": True, "augment_features": False}, [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]),
    ],
)
def test_features_go_up_until_they_are_final(options, features, mirrored, tmp_path):
    catchment.run(frozen(rounds=5, **options), out=tmp_path / "run")
    assert sent(tmp_path / "run", "features") == [ALL * times for times in features]
    assert sent(tmp_path / "run", "mirrored") == [ALL * times for times in mirrored]


def test_nothing_but_a_small_message_goes_up_afterwards(tmp_path):
    result = catchment.run(frozen(rounds=3, freeze_after=0, mirror=True, shift=1), out=tmp_path / "run")
    for field in ("features", "mirrored", "logits", "labels", "ids"):
        assert sent(tmp_path / "run", field)[1:] == [0, 0]
    framing = sent(tmp_path / "run", "(framing)")
    assert max(framing[1:]) < 5 * 600  # of five clients
    assert result["bytes"]["up"] == 2 * ALL + 100 * (10 * 4 + 8 + 8) + sum(framing)


@pytest.mark.parametrize("options", [{}, {"asynchronous": True}, {"edge": "none", "mirror": True}])
def test_an_upload_that_was_lost_is_asked_for_again(options, tmp_path):
    result = catchment.run(frozen(rounds=6, freeze_after=0, faults={"drop": 0.4}, **options), out=tmp_path / "run")
    assert result["lost"] > 0
    state = catchment.Run(tmp_path / "run")._state
    assert sorted(state.store.turns) == [0, 1, 2, 3, 4]
    assert max(state.store.turns.values()) > 1  # what was lost came later


# ---- the server -------------------------------------------------------------------------------------------------


def upload_of(world, client, turn, **more):
    samples = world.private(client)
    n = len(samples)
    return Reply(
        client, 1, Knowledge(torch.rand(n, 16, 4, 4), torch.rand(n, 10), samples.targets, samples.ids, turn, **more)
    )


def test_what_a_client_is_asked_for():
    world = frozen(freeze_after=2).build_world()
    server = Server(world)
    state = world.method.init(server)

    def asked():
        return world.method.feedback(server, state, 0).upload

    assert asked()  # turn 1, which is lost
    assert asked()  # turn 2: they would be final, and are lost too
    assert asked()
    world.method.keep(state, upload_of(world, 0, turn=1))  # late: features of an extractor that trained on
    assert asked()
    world.method.keep(state, upload_of(world, 0, turn=4))
    assert world.method.settled(state) == {0}
    assert not asked()
    assert not asked()


def test_mirror_images_that_are_missing_or_not_asked_for_are_refused():
    with_them = frozen(freeze_after=2, mirror=True).build_world()
    server = Server(with_them)
    accept = with_them.method.accept(server, with_them.method.init(server))
    mirrored = torch.rand(len(with_them.private(0)), 16, 4, 4)
    assert accept(upload_of(with_them, 0, turn=1)) == ""
    assert accept(upload_of(with_them, 0, turn=2)) == "features of mirror images are missing"
    assert accept(upload_of(with_them, 0, turn=2, mirrored=mirrored)) == ""
    nobody = "features of mirror images came that nobody asked for"
    assert accept(upload_of(with_them, 0, turn=1, mirrored=mirrored)) == nobody
    without = frozen(freeze_after=2).build_world()
    accept = without.method.accept(server, without.method.init(Server(without)))
    assert accept(upload_of(without, 0, turn=2, mirrored=mirrored)) == nobody


def trained_on(monkeypatch):
    """The clients of each call of the server's training, with the round."""
    calls = []
    train = FedGKT.train_server

    def note(self, server, state, clients):
        calls.append((server.round, list(clients)))
        train(self, server, state, clients)

    monkeypatch.setattr(FedGKT, "train_server", note)
    return calls


def test_the_server_trains_on_all_settled_clients_in_every_round(monkeypatch):
    calls = trained_on(monkeypatch)
    e = experiment("fedgkt", method={"name": "fedgkt", "freeze_after": 0}, participation={"fraction": 0.4}, rounds=9)
    catchment.run(e)
    known = set()
    for _, clients in calls:
        assert known <= set(clients)
        assert len(set(clients) - known) <= 2  # new ones of this cohort
        known |= set(clients)
    assert known == {0, 1, 2, 3, 4}


def test_settled_clients_that_do_nothing_are_not_asked(monkeypatch, tmp_path):
    calls = trained_on(monkeypatch)
    catchment.run(frozen(rounds=3, freeze_after=0, edge="none"), out=tmp_path / "run")
    assert calls == [(number, [0, 1, 2, 3, 4]) for number in (1, 2, 3)]
    rows = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    purposes = [{entry["purpose"] for entry in row["entries"]} for row in rows]
    assert purposes == [{"training", "evaluation"}, {"evaluation"}, {"evaluation"}]


SLOW = {"profile": ["fast", "slow"], "profiles": {"fast": {"latency": 0.1}, "slow": {"latency": 1.0}}}


def test_an_asynchronous_round_ends_with_settled_clients_that_nothing_came_from(monkeypatch):
    calls = trained_on(monkeypatch)
    catchment.run(frozen(rounds=20, freeze_after=0, asynchronous=True, devices=SLOW))
    rounds = [[clients for number, clients in calls if number == n] for n in range(1, 21)]
    assert rounds[0] == [[0], [2], [4], [0], [2]]  # the slow ones have sent nothing yet
    late = next(calls for calls in rounds if len(calls[-1]) > 1)
    assert late[-1] == sorted({1, 3} - {k for call in late[:-1] for k in call})
    for calls in rounds[rounds.index(late) :]:
        assert {k for call in calls for k in call} == {0, 1, 2, 3, 4}


def test_an_asynchronous_run_in_which_settled_clients_do_nothing_waits_for_the_others_alone(monkeypatch):
    calls = trained_on(monkeypatch)
    result = catchment.run(frozen(rounds=4, freeze_after=1, edge="none", asynchronous=True, devices=SLOW))
    first = [clients for number, clients in calls if number == 1]
    assert sorted(first) == [[0], [1], [2], [3], [4]]
    assert [clients for number, clients in calls if number > 1] == [[0, 1, 2, 3, 4]] * 3
    assert result["virtual_seconds"] == pytest.approx(2.0, abs=0.3)


# ---- what comes out ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"edge": "model"}, {"edge": "none"}])
def test_the_final_model_has_the_frozen_extractor(options, tmp_path):
    e = frozen(rounds=3, freeze_after=1, evaluation={"average": 0.9}, **options)
    result = catchment.run(e, out=tmp_path / "run")
    run = catchment.Run(tmp_path / "run")
    accuracies = []
    for client in range(5):
        kept, model = run._remembered(client), run.client_model(client)
        extractor = {f"extractor.{name}": tensor for name, tensor in model.extractor.state_dict().items()}
        assert same(extractor, kept["extractor"])
        own = {name: tensor for name, tensor in kept["model"].items() if name in extractor}
        assert same(own, extractor) is (options != {"edge": "model"})
        test = run.world.data.test
        with torch.no_grad():
            right = model(run.world.normalise(test.images[test.index])).argmax(1) == test.targets
        accuracies.append(right.float().mean().item())
    assert sum(accuracies) / 5 == pytest.approx(result["accuracy"], abs=1e-6)


def test_frozen_stems_are_enough_to_learn_from():
    """Digits, of which each went up once."""
    options = {"freeze_after": 0, "mirror": True, "shift": 1, "distill": "server-to-edge", "server_epochs": 2}
    assert catchment.run(frozen(few=False, rounds=12, **options))["accuracy"] > 0.6


# ---- what is refused --------------------------------------------------------------------------------------------


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ExperimentError, match="freeze_after is -1; at least 0"):
        FedGKT(freeze_after=-1)
    with pytest.raises(ExperimentError, match="shift is -1; at least 0"):
        FedGKT(shift=-1)
    with pytest.raises(
        ExperimentError, match='edge = "none" is for clients whose features are final; set freeze_after'
    ):
        FedGKT(edge="none")
    for options in ({"freeze_after": 1}, {"mirror": True}):
        with pytest.raises(ExperimentError, match="skip_below compares features with those of an earlier turn"):
            FedGKT(skip_below=0.1, **options)
    for options in ({"mirror": True}, {"shift": 1}):
        with pytest.raises(ExperimentError, match="mirror and shift are for features of plain images"):
            frozen(**options).build_world()
        frozen(augment_features=False, **options).build_world()
        frozen(freeze_after=3, **options).build_world()
    with pytest.raises(ExperimentError, match=r"shift is 4, and features of cnn have the shape \[16, 4, 4\]"):
        frozen(freeze_after=0, shift=4).build_world()
    flat = {"client": "models_of_users:flat_edge", "server": "models_of_users:flat_half"}
    with pytest.raises(ExperimentError, match="shift is 1, and features of models_of_users:flat_edge have the shape"):
        frozen(freeze_after=0, shift=1, models=flat).build_world()
    frozen(freeze_after=0, mirror=True, models=flat).build_world()
