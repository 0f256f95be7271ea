"""Fed-KGF: who uploads what, and what becomes of it."""

from __future__ import annotations

import functools
import json
import re

import pytest
import torch
from hypothesis import given, settings, strategies as st
from worlds import experiment
from worlds_by_hand import world

import catchment
from catchment import models
from catchment.core.fleet import Fleet
from catchment.core.intake import Reply
from catchment.core.ledger import Ledger
from catchment.core.server import Server
from catchment.errors import ExperimentError, ModelError
from catchment.export import open_model
from catchment.families.weights import GlobalState
from catchment.methods.fedkgf import FedKGF, Modules, in_groups
from catchment.reading import read_table
from catchment.simulation.inprocess import InProcess

# ---- groups -----------------------------------------------------------------------------------------------------


@given(items=st.integers(1, 60), data=st.data())
def test_groups_are_consecutive_and_differ_by_at_most_one(items, data):
    count = data.draw(st.integers(1, items))
    groups = in_groups(range(items), count)
    assert len(groups) == count
    assert [item for group in groups for item in group] == list(range(items))
    sizes = [len(group) for group in groups]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


def test_five_modules_in_three_groups_as_in_the_paper():
    assert in_groups([1, 2, 3, 4, 5], 3) == [[1, 2], [3, 4], [5]]


# ---- a round, by hand -------------------------------------------------------------------------------------------


class Told:
    """A fleet whose clients answer with tensors of their own number; those in `lost` do not."""

    def __init__(self, clients, wanted, samples=None, lost=(), spoil=lambda weights: weights) -> None:
        self.clients, self.wanted, self.samples, self.lost, self.spoil = list(clients), wanted, samples, lost, spoil
        self.asked: dict[int, tuple[int, int]] = {}
        self.refused: list[tuple[int, str]] = []

    def cohort(self):
        return self.clients

    def ask(self, handler, bodies, accept, in_order):
        assert in_order  # means of floats depend on it
        self.asked = {client: (body.group, body.groups) for client, body in bodies.items()}
        for client, body in bodies.items():
            weights = {name: torch.full_like(body.weights[name], client + 1) for name in self.wanted(body)}
            if client in self.lost:
                continue
            samples = None if self.samples is None else self.samples[client]
            reply = Reply(client, 1, Modules(self.spoil(weights), 0.0, samples))
            if reason := accept(reply):
                self.refused.append((client, reason))
            else:
                yield reply


@functools.cache
def server_of(model: str) -> Server:
    table = {"name": "digits", "clients": 3, "train": 60, "test": 20}
    return Server(catchment.Experiment.from_dict({"data": table, "models": {"client": model}}).build_world())


def one_round(model, clients, number=1, method=FedKGF(), **fleet_settings):  # noqa: B008, it is frozen
    """The fleet, the state after a round of it, and the modules."""
    server = server_of(model)
    server.round = number
    architecture = server.world.client_architecture(0)
    modules = models.modules_of(architecture.build(), architecture.shape)
    fleet = Told(clients, lambda task: method.wanted(architecture, task), **fleet_settings)
    state = GlobalState({name: torch.zeros_like(w) for name, w in architecture.facts.initial.items()})
    method.round(server, state, fleet)
    return fleet, state, modules


MODELS = {"mlp": 2, "cnn": 3, "resnet4": 4, "resnet8": 8, "basic(4,1)": 10, "basic(4,2)": 18}


@settings(deadline=None, max_examples=60)
@given(
    model=st.sampled_from(sorted(MODELS)), clients=st.sets(st.integers(0, 40), min_size=1), number=st.integers(1, 99)
)
def test_every_module_is_uploaded_by_exactly_one_participant(model, clients, number):
    fleet, state, modules = one_round(model, sorted(clients), number)
    assert len(modules) == MODELS[model]
    groups = min(len(clients), len(modules))
    assert sorted(fleet.asked.values()) == [(group, groups) for group in range(groups)]
    assert fleet.asked.keys() <= clients
    for names in modules:  # normalisation and its statistics come from the client that sent the convolution
        owners = {int(number) for name in names for number in state.weights[name].reshape(-1).unique()}
        assert len(owners) == 1
        assert next(iter(owners)) - 1 in clients
    assert not fleet.refused


def test_lost_uploads_keep_the_old_module():
    fleet, state, modules = one_round("basic(4,1)", range(4), lost=(1, 2))
    for group, names in enumerate(in_groups(modules, 4)):
        owner = next(client for client, (own, _) in fleet.asked.items() if own == group)
        expected = 0 if owner in (1, 2) else owner + 1
        assert {int(n) for m in names for name in m for n in state.weights[name].reshape(-1).unique()} == {expected}


def test_every_round_has_another_permutation_and_every_seed_the_same_one():
    permutations = [tuple(sorted(one_round("basic(4,2)", range(10), n)[0].asked.items())) for n in range(1, 9)]
    assert len(set(permutations)) == 8
    assert permutations[0] == tuple(sorted(one_round("basic(4,2)", range(10), 1)[0].asked.items()))


WRONG = {
    "a tensor too few": (lambda w: dict(list(w.items())[1:]), "other tensors came than those of the modules of group"),
    "a tensor too many": (
        lambda w: {**w, "more": torch.zeros(1)},
        "other tensors came than those of the modules of group",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_upload_is_refused_with_the_reason_and_changes_nothing(case):
    spoil, reason = WRONG[case]
    fleet, state, _ = one_round("mlp", range(2), spoil=spoil)
    assert not any(bool(w.any()) for w in state.weights.values())
    assert [client for client, _ in fleet.refused] == list(fleet.asked)
    assert all(re.search(reason, why) for _, why in fleet.refused)


# Client 0 has one sample x = (1, 0) of class 0, client 1 has three of x = (0, 2) of class 1, as for FedAvg.
CLIENTS = [([[1.0, 0.0]], [0]), ([[0.0, 2.0]] * 3, [1] * 3)]


def after_a_round(method, **settings):
    own = world(method, CLIENTS, **settings)
    server, fleet = Server(own), Fleet(InProcess(own), method, Ledger(), seed=0)
    state = method.init(server)
    server.round = 1
    fleet.begin_round(1)
    method.round(server, state, fleet)
    return state.weights


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_the_model_is_assembled_not_averaged(mu):
    # One module for two clients: one of them uploads it, and the model is theirs. With mu, the second of two steps
    # goes back by mu times the first.
    found = after_a_round(FedKGF(client_epochs=2, mu=mu))["1.weight"]
    first = 1 / 2 + 1 - torch.sigmoid(torch.tensor(1.0)).item() - mu / 2
    second = 1 + 2 * (1 - torch.sigmoid(torch.tensor(4.0)).item()) - mu
    options = torch.tensor([[first, 0.0], [-first, 0.0]]), torch.tensor([[0.0, -second], [0.0, second]])
    assert sum(torch.allclose(found, option) for option in options) == 1


# ---- what is averaged -------------------------------------------------------------------------------------------


def numbers(weights, names):
    """All numbers in these tensors."""
    return {float(number) for name in names for number in weights[name].reshape(-1).unique()}


@pytest.mark.parametrize("clients", [2, 5, 12])
def test_the_last_module_is_averaged_by_samples_and_the_others_have_one_owner(clients):
    """Client k sends k + 1 and has k + 1 samples: sum of squares over sum. All are asked, with a group or without."""
    method = FedKGF(average_last=True)
    samples = [k + 1 for k in range(clients)]
    fleet, state, modules = one_round("resnet8", range(clients), method=method, samples=samples)
    groups = min(clients, 7)  # eight modules, of which the last has no owner
    assert sorted(fleet.asked.values()) == [(min(place, groups), groups) for place in range(clients)]
    *dealt, last = modules
    for group, owned in enumerate(in_groups(dealt, groups)):
        owner = next(client for client, task in fleet.asked.items() if task == (group, groups))
        assert numbers(state.weights, [name for names in owned for name in names]) == {owner + 1}
    mean = sum(n * n for n in samples) / sum(samples)
    assert [*numbers(state.weights, last)] == pytest.approx([mean])


def test_who_is_lost_is_not_in_the_mean():
    method = FedKGF(average_last=True)
    _, state, modules = one_round("mlp", range(3), method=method, samples=[1, 3, 100], lost=(2,))
    assert numbers(state.weights, modules[-1]) == {(1 * 1 + 3 * 2) / 4}


def test_an_upload_without_a_number_of_samples_cannot_be_averaged():
    fleet, state, _ = one_round("mlp", range(2), method=FedKGF(average_last=True))
    assert not any(bool(w.any()) for w in state.weights.values())
    assert [why for _, why in fleet.refused] == ["samples are not there, by which its last module is averaged"] * 2


def test_with_one_module_its_mean_is_fedavg():
    """Gradient steps from zero take client 0 to 1/2 and client 1 to 1; they have 1 and 3 samples."""
    found = after_a_round(FedKGF(average_last=True))["1.weight"]
    assert torch.allclose(found, torch.tensor([[1 / 8, -3 / 4], [-1 / 8, 3 / 4]]))


# ---- whole runs -------------------------------------------------------------------------------------------------


def test_the_models_of_a_run_have_the_kernels_that_its_name_says(tmp_path):
    settings = experiment("fedavg", models={"client": "kgf(basic(8,1),16)"}, method={"name": "fedkgf"})
    catchment.run(settings, tmp_path / "run")
    kernels = [m.kernels() for m in catchment.Run(tmp_path / "run").model().modules() if hasattr(m, "kernels")]
    again = [m.kernels() for m in catchment.Run(tmp_path / "run").client_model(3).modules() if hasattr(m, "kernels")]
    assert len(kernels) == 6  # those of 32 and 64 channels
    assert all(map(torch.equal, kernels, again))


def test_server_and_clients_generate_the_same_kernels():
    own = experiment("fedkgf").build_world()
    server = Server(own)
    weights = own.client_architecture(0).facts.initial
    on_server = server.client_model(0, weights)
    for client in range(own.clients):
        on_client = own.client_architecture(client).build()
        on_client.load_state_dict(weights)
        for one, two in zip(on_server.modules(), on_client.modules()):
            assert not hasattr(one, "kernels") or torch.equal(one.kernels(), two.kernels())


def kernels_of(model):
    return [part for part in model.modules() if hasattr(part, "kernels")]


def test_with_redraw_every_round_has_another_alpha_and_beta_and_all_have_the_same(tmp_path):
    models = {"client": "kgf(cnn(8),4,decades,redraw)"}
    settings = experiment("fedavg", models=models, method={"name": "fedkgf"}, rounds=2)
    catchment.run(settings, tmp_path / "run")
    run = catchment.Run(tmp_path / "run")
    for model in (run.model(), run.client_model(1)):  # the global model is that of the last round
        assert [int(part.draw) for part in kernels_of(model)] == [2, 2]
    model = run.model().eval()
    images = torch.randn(3, *settings.build_world().data.dataset.shape)
    expected = model(images)
    for suffix, format in (("safetensors", "safetensors"), ("pt2", "torch")):
        run.export(path := tmp_path / f"model.{suffix}", format=format)
        with torch.no_grad():
            assert torch.allclose(open_model(path).outputs(images), expected, atol=1e-5)
    for part in kernels_of(model):
        part.draw.fill_(1)
    assert not torch.allclose(model(images), expected, atol=1e-5)


def test_clients_are_told_the_number_of_the_round_with_the_weights():
    server = server_of("kgf(cnn(4),2,redraw)")
    told: dict[str, torch.Tensor] = {}

    class Listening(Told):
        def ask(self, handler, bodies, accept, in_order):
            for body in bodies.values():
                told.update({name: w for name, w in body.weights.items() if name.endswith("draw")})
            return super().ask(handler, bodies, accept, in_order)

    for number in (1, 5):
        server.round = number
        architecture = server.world.client_architecture(0)
        fleet = Listening([0], lambda task: [])
        FedKGF().round(server, GlobalState(dict(architecture.facts.initial)), fleet)
        assert {int(draw) for draw in told.values()} == {number}
        assert len(told) == 2


def test_a_client_uploads_its_group_alone(tmp_path):
    settings = experiment("fedkgf", participation={"fraction": 1.0}, rounds=1)
    catchment.run(settings, tmp_path / "run")
    (line,) = (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()
    ups = [entry for entry in json.loads(line)["entries"] if entry["direction"] == "up"]
    assert sum(len(entry["clients"]) for entry in ups) == 3  # of five: there are three modules
    names = [name for entry in ups for name in entry["tensors"] if name != "(framing)"]
    expected = settings.build_world().client_architecture(0).facts.initial
    assert sorted(names) == sorted(f"weights/{name}" for name in expected)


def test_means_do_not_depend_on_who_is_faster():
    method = {"name": "fedkgf", "average_last": True}
    settings = {"method": method, "models": {"client": "resnet4"}, "participation": {"fraction": 1.0}}
    reference = catchment.run(experiment("fedkgf", **settings))
    assert reference["failed"] == reference["refused"] == 0
    again = catchment.run(experiment("fedkgf", **settings, workers=4, strict=True))
    assert again["fingerprint"] == reference["fingerprint"]


def test_time_is_that_of_the_bytes_over_the_link():
    """Ten times the bandwidth, a tenth of the time; down and up count apart."""
    seconds, sizes = [], set()
    for profile in ("1mbit", "10mbit", "100mbit"):
        result = catchment.run(experiment("fedkgf", devices={"profile": profile}, participation={"fraction": 0.2}))
        seconds.append(result["virtual_seconds"])
        sizes.add((result["bytes"]["up"], result["bytes"]["down"]))
    ((up, down),) = sizes  # one client a round: rounds do not overlap
    assert seconds == pytest.approx([8e-6 * (up + down) / speed for speed in (1, 10, 100)])


@pytest.mark.parametrize(
    ("settings", "reason"), [({"mu": -1.0}, "mu is -1"), ({"client_epochs": 0}, "client_epochs is 0")]
)
def test_settings_that_make_no_sense(settings, reason):
    with pytest.raises(ExperimentError, match=reason):
        read_table(FedKGF, settings)


def test_clients_of_different_architectures_are_refused_before_training():
    with pytest.raises(ModelError, match="fedkgf shares weights among clients"):
        experiment("fedkgf", models={"client": ["cnn", "resnet11"]}).build_world()
