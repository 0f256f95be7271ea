"""FedZKT: equations by hand, who learns from whom, what stays untouched, and devices that misbehave."""

from __future__ import annotations

import dataclasses
import io
import json
import math

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from worlds import experiment
from worlds_by_hand import world as by_hand

import catchment
from catchment.core.client import Client
from catchment.core.fleet import Fleet
from catchment.core.ledger import Ledger
from catchment.core.method import on_client
from catchment.core.server import Server
from catchment.core.worker import WorkerCache
from catchment.errors import Diverged, ExperimentError, ModelError
from catchment.exchange.request import Request
from catchment.learning.training import copy_weights
from catchment.methods import fedzkt
from catchment.methods.fedzkt import (
    LOSSES,
    FedZKT,
    OnDeviceModel,
    Transferred,
    gradient_norms,
    kl_loss,
    l1_loss,
    logits_of,
    sl_loss,
)
from catchment.reading import read_table
from catchment.report import write_report
from catchment.runs.reading import RunFiles
from catchment.runtimes.torch import serve
from catchment.simulation.inprocess import InProcess

LOG3 = math.log(3)
# F is (1/2, 1/2). The devices are (3/4, 1/4) and (1/2, 1/2), their mean is (5/8, 3/8).
U = torch.zeros(1, 2)
V = torch.tensor([[[LOG3, 0.0]], [[0.0, 0.0]]])
KL = 0.5 * math.log(4 / 5) + 0.5 * math.log(4 / 3)


# ---- equations ---------------------------------------------------------------------------------------------------


def test_losses_by_hand():
    assert sl_loss(U, V).item() == pytest.approx(1 / 8 + 1 / 8)
    assert kl_loss(U, V).item() == pytest.approx(KL, rel=1e-5)
    assert l1_loss(U, V).item() == pytest.approx(LOG3 / 2)  # of the mean of logits, (log(3) / 2, 0)
    # A mean over the batch: a row on which all agree halves them.
    u, v = torch.zeros(2, 2), torch.cat([V, torch.zeros(2, 1, 2)], 1)
    for loss in LOSSES.values():
        assert loss(u, v).item() == pytest.approx(loss(U, V).item() / 2, rel=1e-5)


def test_gradients_of_the_losses_by_hand():
    """The derivative of softmax at (1/2, 1/2) is 1/4 on the diagonal and -1/4 beside it."""

    def gradient(loss):
        u = U.clone().requires_grad_()
        return torch.autograd.grad(loss(u, V), u)[0].tolist()[0]

    assert gradient(sl_loss) == pytest.approx([-1 / 4 - 1 / 4, 1 / 4 + 1 / 4])  # signs are (-, +)
    assert gradient(kl_loss) == pytest.approx([(math.log(4 / 5) - KL) / 2, (math.log(4 / 3) - KL) / 2], rel=1e-5)
    assert gradient(l1_loss) == pytest.approx([-1.0, 0.0])


def test_gradient_norms_are_of_one_input_each():
    """u = x, so that the norms are those of the gradients above; a second input that all agree on has none."""
    x = torch.zeros(2, 2, requires_grad=True)
    norms = gradient_norms(x + 0.0, torch.cat([V, torch.zeros(2, 1, 2)], 1), x)
    assert norms["sl"] == pytest.approx(math.sqrt(1 / 2) / 2)
    assert norms["l1"] == pytest.approx(1 / 2)
    assert norms["kl"] == pytest.approx(math.hypot(math.log(4 / 5) - KL, math.log(4 / 3) - KL) / 2 / 2, rel=1e-5)


def test_kl_takes_a_certain_ensemble():
    """Softmax outputs that underflow to 0 must not give infinity."""
    certain = torch.tensor([[[200.0, -200.0]]])
    u = torch.tensor([[-200.0, 200.0]], requires_grad=True)
    loss = kl_loss(u, certain)
    assert loss.item() == pytest.approx(400.0)
    assert torch.autograd.grad(loss, u)[0].isfinite().all()


ROWS = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
LABELS = [0, 1, 1]


def trained(method, weights):
    """The weights of a linear classifier after the device's update, full batch, learning rate 1."""
    world = by_hand(method, [(ROWS, LABELS)])
    request = Request(0, "device_update", 1, 0, 0, Transferred(weights).pack())
    response = serve(world, request, None, WorkerCache())
    assert response.error == ""
    return OnDeviceModel.unpack(response.body).weights["1.weight"]


def test_the_device_update_is_held_by_what_it_received():
    """Equation 9 over |D_k| = 3 in two steps: its anchor pulls with 2 / 3 (w - w_received) from the second step on."""
    x, y = torch.tensor(ROWS), F.one_hot(torch.tensor(LABELS)).float()

    def g(w):
        return ((x @ w.T).softmax(1) - y).T @ x / len(x)

    received = torch.tensor([[0.5, -0.25], [0.0, 1.0]])
    first = received - g(received)
    for anchor in (1.0, 0.3):
        expected = first - (g(first) + anchor * 2 / 3 * (first - received))
        found = trained(FedZKT(client_epochs=2, anchor=anchor), {"1.weight": received})
        torch.testing.assert_close(found, expected)
    as_printed = trained(FedZKT(client_epochs=2), {"1.weight": received})
    torch.testing.assert_close(as_printed, first - (g(first) + 2 / 3 * (first - received)))
    without = trained(FedZKT(client_epochs=2, anchor=0.0), {"1.weight": received})
    torch.testing.assert_close(without, first - g(first))


def test_before_the_first_transfer_nothing_holds_the_device():
    held, free = (FedZKT(client_epochs=2, anchor=anchor) for anchor in (9.0, 0.0))
    assert torch.equal(trained(held, None), trained(free, None))


@pytest.mark.parametrize(
    ("milestones", "expected"),
    [
        # rounds 1 to 4 with 4 iterations each; 16 in all, so half is the start of round 3
        ("run", [[0] * 4, [0] * 4, [1] * 4, [2] * 4]),
        ("round", [[0, 0, 1, 2]] * 4),
        ("none", [[0] * 4] * 4),
    ],
)
@pytest.mark.parametrize("students", ["full", "dropping"])
def test_rates_drop_at_a_half_and_three_quarters(milestones, expected, students, monkeypatch):
    """Those of the global model and the generator; if asked for, in the second half of a round the students' too."""
    world = zkt(iterations=4, milestones=milestones, students=students, generator_lr=0.002)
    server, state = begun(world)
    stepped = []
    monkeypatch.setattr(fedzkt, "_step", lambda optimizer, loss: stepped.append(optimizer.param_groups[0]["lr"]))
    for server.round, drops in enumerate(expected, start=1):
        stepped.clear()
        world.method.server_update(server, state, active=[0])
        generator, model, of_students = stepped[:8:2], stepped[1:8:2], stepped[8:]
        assert generator == pytest.approx([0.002 * 0.3**dropped for dropped in drops])
        assert model == pytest.approx([0.01 * 0.3**dropped for dropped in drops])
        assert of_students == (model if students == "dropping" else pytest.approx([0.01] * 4))


# ---- the server --------------------------------------------------------------------------------------------------


def zkt(client=("mlp", "resnet4"), server="cnn", **options):
    method = {"name": "fedzkt", "iterations": 3, "width": 4, "noise": 8, **options}
    models = {"client": list(client), "server": server}
    optimizer = {"server": {"name": "sgd", "lr": 0.01}}
    return experiment("fedzkt", rounds=4, method=method, models=models, optimizer=optimizer).build_world()


def begun(world, devices=(0, 1, 2)):
    """A server that has heard these devices, whose models differ."""
    server = Server(world)
    server.round = 1
    state = world.method.init(server)
    for k in devices:
        model = world.client_architecture(k).build()
        generator = torch.Generator().manual_seed(k)
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.3 * torch.randn(weight.shape, generator=generator)
            model.train()(torch.randn(16, 1, 8, 8, generator=generator))  # so that statistics are not 0 and 1
        state.weights[k] = copy_weights(model)
    return server, state


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def disagreement(world, server, state, noise):
    """What F and the ensemble make of the images of some noise."""
    method = world.method
    models = {k: method.device_model(server, state, k) for k in sorted(state.weights)}
    with torch.no_grad():
        x = state.generator.train()(noise)
        return LOSSES[method.loss](state.model.train()(x), logits_of(list(models.values()), x)).item()


@pytest.mark.parametrize("loss", LOSSES)
def test_the_generator_raises_the_disagreement_and_the_global_model_lowers_it(loss):
    world = zkt(loss=loss, iterations=25, milestones="none")
    noise = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    for still, moves in (("optimizer", "generator"), ("generator_optimizer", "model")):
        server, state = begun(world)
        getattr(state, still).step = lambda: None  # this side stands still
        before = disagreement(world, server, state, noise)
        models = {k: world.method.device_model(server, state, k) for k in state.weights}
        world.method.to_global(server, state, list(models.values()))
        after = disagreement(world, server, state, noise)
        assert (after > before) if moves == "generator" else (after < before)


def test_teachers_stay_as_they_are():
    """Weights and statistics of batch normalisation, of devices that taught and of devices that were idle."""
    world = zkt(iterations=2)
    server, state = begun(world)
    models = {k: world.method.device_model(server, state, k) for k in state.weights}
    before = {k: copy_weights(model) for k, model in models.items()}
    world.method.to_global(server, state, list(models.values()))
    assert all(same(copy_weights(model), before[k]) for k, model in models.items())
    assert all(weight.grad is None for model in models.values() for weight in model.parameters())

    world.method.server_update(server, state, active=[0, 1])
    assert same(state.weights[2], before[2])
    for k in (0, 1):
        assert not same(state.weights[k], before[k])
    statistics = [name for name in before[1] if "running" in name or "tracked" in name]
    assert statistics
    assert all(torch.equal(state.weights[1][name], before[1][name]) for name in statistics)


def test_an_idle_device_teaches():
    world = zkt(iterations=1)
    results = []
    for devices in ((0, 1, 2), (0, 1)):
        server, state = begun(world, devices)
        world.method.server_update(server, state, active=[0])
        results.append(copy_weights(state.model))
    assert not same(*results)


@pytest.mark.parametrize("client", [("mlp",), ("mlp", "resnet4", "cnn")])
def test_a_student_learns_as_if_it_were_alone(client):
    """Whoever else is taught."""
    world = zkt(client, iterations=3)
    everybody = range(5)
    together, alone = {}, {}
    for group in ([*everybody], *([k] for k in everybody)):
        server, state = begun(world, everybody)
        models = {k: world.method.device_model(server, state, k) for k in group}
        world.method.to_devices(server, state, list(models.values()))
        (together if len(group) > 1 else alone).update({k: copy_weights(model) for k, model in models.items()})
    for k in everybody:
        for name, weight in together[k].items():
            torch.testing.assert_close(weight, alone[k][name], rtol=1e-4, atol=1e-6)


def test_students_come_nearer_to_the_global_model():
    world = zkt(("mlp",), iterations=40)
    server, state = begun(world)
    x = state.generator.train()(torch.randn(64, 8, generator=torch.Generator().manual_seed(2))).detach()

    def distances():
        with torch.no_grad():
            target = state.model.eval()(x).log_softmax(1)
            logits = [world.method.device_model(server, state, k)(x).log_softmax(1) for k in state.weights]
            return [F.kl_div(z, target, reduction="batchmean", log_target=True).item() for z in logits]

    before = distances()
    models = {k: world.method.device_model(server, state, k) for k in state.weights}
    world.method.to_devices(server, state, list(models.values()))
    state.weights = {k: copy_weights(model) for k, model in models.items()}
    assert all(after < 0.9 * first for after, first in zip(distances(), before))


def test_frozen_weights_of_a_students_model_stay_frozen():
    world = zkt(("mlp",), iterations=1)
    server, state = begun(world, (0,))
    model = world.method.device_model(server, state, 0)
    first, *others = model.parameters()
    first.requires_grad_(False)
    before = [weight.clone() for weight in (first, *others)]
    world.method.to_devices(server, state, [model])
    moved = [not torch.equal(weight, old) for weight, old in zip((first, *others), before)]
    assert moved == [False, *[True] * len(others)]


def test_a_loss_that_is_not_finite_is_said():
    world = zkt()
    server, state = begun(world)
    with torch.no_grad():
        state.model.classifier[-1].bias.fill_(math.nan)
    with pytest.raises(Diverged, match=r"the disagreement is nan in round 1; a lower optimizer\.server\.lr, now 0\.01"):
        world.method.server_update(server, state, active=[0])
    models = {k: world.method.device_model(server, state, k) for k in state.weights}
    with pytest.raises(Diverged, match="the loss of the students is nan in round 1"):
        world.method.to_devices(server, state, list(models.values()))


# ---- what a user may bring, and what is refused ------------------------------------------------------------------


def test_own_modules_and_an_own_generator_take_part():
    own = {"client": ["models_of_users:dropout", "models_of_users:tied", "mlp"], "server": "models_of_users:dropout"}
    method = {"name": "fedzkt", "iterations": 2, "generator": "models_of_users:flat_generator"}
    reference = catchment.run(experiment("fedzkt", models=own, method=method))
    assert reference["failed"] == reference["refused"] == 0
    again = catchment.run(experiment("fedzkt", models=own, method=method, workers=4, strict=True))
    assert again["fingerprint"] == reference["fingerprint"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"models": {"client": "cnn", "server": "resnet10"}},
            r"global model that takes images, and models\.server is resnet10",
        ),
        (
            {"method": {"generator": "models_of_users:small_generator"}},
            r"makes \[2, 1, 4, 4\] of 2 noises; \[2, 1, 8, 8\]",
        ),
        ({"method": {"generator": "models_of_users:deaf_generator"}}, r"cannot take noise \[2, 10\]"),
        ({"method": {"generator": "models_of_users:dropout"}}, "could not be built for images of 1x8x8"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(change, words):
    change = {"method": {"name": "fedzkt", "noise": 10, **change.get("method", {})}, "models": change.get("models", {})}
    with pytest.raises(ModelError, match=words):
        experiment("fedzkt", **change).build_world()


@pytest.mark.parametrize(
    ("option", "words"),
    [({"iterations": 0}, "iterations is 0"), ({"anchor": -1}, "anchor is -1"), ({"factor": 0.0}, r"factor is 0\.0"),
     ({"generator_lr": 2.0}, r"generator_lr is 2\.0; a share above 0 up to 1")],
)  # fmt: skip
def test_wrong_options_are_refused(option, words):
    with pytest.raises(ExperimentError, match=words):
        read_table(FedZKT, option)


@dataclasses.dataclass(frozen=True)
class OneOverflows(FedZKT):
    """Device 0 sends finite weights whose logits are not."""

    @on_client
    def device_update(self, client: Client, request: Transferred) -> OnDeviceModel:
        """FedZKT's, spoilt on device 0."""
        trained = FedZKT.device_update(self, client, request)
        huge = {name: torch.full_like(weight, 1e30) for name, weight in trained.weights.items()}
        return trained if client.id else OnDeviceModel(huge, 0.0)


def test_finite_weights_that_overflow_are_refused():
    """One device must not be able to turn the ensemble into NaN."""
    method = OneOverflows(client_epochs=1, iterations=1, noise=5, width=4)
    world = dataclasses.replace(zkt(("mlp",)), method=method)
    server, fleet = Server(world), Fleet(InProcess(world), method, Ledger(), seed=0)
    state = method.init(server)
    server.round = 1
    fleet.begin_round(1)
    method.round(server, state, fleet)
    assert [(event["client"], event["why"]) for event in fleet.outcomes.events] == [
        (0, "its model gives NaN or infinity on generated images")
    ]
    assert sorted(state.weights) == list(range(1, world.clients))


def test_devices_that_misbehave_are_left_out_with_a_reason_and_the_run_goes_on(tmp_path):
    """Device 0 sends another architecture, 1 other shapes, 2 NaN; 3 vanishes after round 1; 4 is as it should be."""
    method = {"name": "models_of_users:Zoo", "iterations": 2, "width": 4, "client_epochs": 1}
    result = catchment.run(
        experiment("fedzkt", method=method, participation={"fraction": 1.0}, models={"client": "mlp"}), tmp_path / "run"
    )
    rounds = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    for record in rounds:
        said = {event["client"]: (event["what"], event["why"]) for event in record["events"]}
        assert said[0][0] == said[1][0] == said[2][0] == "refused"
        assert "is expected" in said[0][1]
        assert "size 0 should be" in said[1][1]
        assert "weights has the norm nan" in said[2][1]
        assert (said[3] == ("failed", "the device is gone")) if record["round"] > 1 else (3 not in said)
        assert 4 not in said
    assert (result["refused"], result["failed"]) == (9, 2)
    run = catchment.Run(tmp_path / "run", trust=True)
    learned = [not same(copy_weights(run.client_model(k)), run.world.first_weights(k)) for k in range(5)]
    assert learned == [False, False, False, True, True]  # what the server holds of 3 still teaches


# ---- what comes out ----------------------------------------------------------------------------------------------


def test_a_run_reports_devices_global_model_gradients_and_images(tmp_path):
    result = catchment.run(experiment("fedzkt"), out=tmp_path / "run")
    assert set(result["more"]) == {"gradient_sl", "gradient_kl", "gradient_l1"}
    assert min(result["more"].values()) > 0
    assert result["server"]["accuracy"] > 0
    assert set(result["models"]) == {"mlp", "cnn"}
    image = Image.open(io.BytesIO((tmp_path / "run" / "images" / "generator.png").read_bytes()))
    assert image.size == (6 * 58 - 2, 6 * 58 - 2)  # 36 images, of 8 pixels enlarged 7 times, 2 pixels between
    assert len(image.getcolors()) > 100
    page = write_report([RunFiles.read(tmp_path / "run")], tmp_path / "page.html").read_text()
    assert '<img src="data:image/png;base64,' in page
    assert "Gradient per round" in page


def test_looking_at_images_changes_nothing():
    world = zkt()
    server, state = begun(world)
    before = copy_weights(state.generator)
    first = world.method.shown(server, state)
    assert torch.equal(first, world.method.shown(server, state))
    assert same(copy_weights(state.generator), before)
    assert first.mean().abs() < 1e-5  # every channel is normalised


def test_a_run_gives_the_model_of_each_device_and_the_global_one(tmp_path):
    result = catchment.run(experiment("fedzkt", participation={"fraction": 1.0}), out=tmp_path / "run")
    run = catchment.Run(tmp_path / "run")
    test = run.world.data.test
    images = run.world.normalise(test.images[test.index])

    def accuracy(model):
        with torch.no_grad():
            return (model(images).argmax(1) == test.targets).float().mean().item()

    devices = [accuracy(run.client_model(k)) for k in range(5)]
    assert sum(devices) / 5 == pytest.approx(result["accuracy"], abs=1e-6)
    assert accuracy(run.model()) == pytest.approx(result["server"]["accuracy"], abs=1e-6)


def test_the_transfer_travels_with_the_next_request(tmp_path):
    """Weights up in every round, down from the second on; nothing else has tensors."""
    e = experiment("fedzkt", participation={"fraction": 1.0}, models={"client": "mlp"}, rounds=2)
    catchment.run(e, out=tmp_path / "run")
    crossed = []
    for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines():
        sizes = {"up": 0, "down": 0}
        for entry in json.loads(line)["entries"]:
            tensors = sum(size for name, size in entry["tensors"].items() if name.startswith("weights/"))
            sizes[entry["direction"]] += tensors * len(entry["clients"])
        crossed.append(sizes)
    model = 5 * 4 * 4_810
    assert crossed == [{"up": model, "down": 0}, {"up": model, "down": model}]


def test_every_option_reaches_the_computation():
    results = [
        catchment.run(
            experiment(
                "fedzkt", method={"name": "fedzkt", "iterations": 2, "width": 4, "noise": 10, **option}, rounds=2
            )
        )["fingerprint"]
        for option in ({}, {"loss": "kl"}, {"loss": "l1"}, {"anchor": 0.0}, {"milestones": "none"})
    ]
    assert len(set(results)) == len(results)
