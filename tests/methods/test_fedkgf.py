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
from catchment.core.replies import Reply
from catchment.core.server import Server
from catchment.core.traffic import Traffic
from catchment.costs.ledger import Ledger
from catchment.engines.inprocess import InProcess
from catchment.errors import ExperimentError, ModelError
from catchment.families.weights import GlobalState
from catchment.methods.fedkgf import FedKGF, Modules, in_groups

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

    def __init__(self, clients, modules, lost=(), spoil=lambda weights: weights) -> None:
        self.clients, self.modules, self.lost, self.spoil = list(clients), modules, lost, spoil
        self.asked: dict[int, tuple[int, int]] = {}
        self.refused: list[tuple[int, str]] = []

    def cohort(self):
        return self.clients

    def ask(self, handler, bodies, accept):
        self.asked = {client: (body.group, body.groups) for client, body in bodies.items()}
        for client, body in bodies.items():
            names = [name for module in in_groups(self.modules, body.groups)[body.group] for name in module]
            weights = {name: torch.full_like(body.weights[name], client + 1) for name in names}
            if client in self.lost:
                continue
            reply = Reply(client, 1, Modules(self.spoil(weights), 0.0))
            if reason := accept(reply):
                self.refused.append((client, reason))
            else:
                yield reply


@functools.cache
def server_of(model: str) -> Server:
    table = {"name": "digits", "clients": 3, "train": 60, "test": 20}
    return Server(catchment.Experiment.from_dict({"data": table, "models": {"client": model}}).build_world())


def one_round(model, clients, number=1, **fleet_settings):
    """The fleet, the state after a round of it, and the modules."""
    server = server_of(model)
    server.round = number
    architecture = server.world.client_architecture(0)
    modules = models.modules_of(architecture.build(), architecture.shape)
    fleet = Told(clients, modules, **fleet_settings)
    state = GlobalState({name: torch.zeros_like(w) for name, w in architecture.facts.initial.items()})
    FedKGF(kernels=0).round(server, state, fleet)
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


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_the_model_is_assembled_not_averaged(mu):
    # One module for two clients: one of them uploads it, and the model is theirs. With mu, the second of two steps
    # goes back by mu times the first.
    method = FedKGF(kernels=0, client_epochs=2, mu=mu)
    own = world(method, CLIENTS)
    server, fleet = Server(own), Fleet(traffic := Traffic(InProcess(own), method, Ledger()), seed=0)
    state = method.init(server)
    server.round = 1
    traffic.begin_round(1)
    method.round(server, state, fleet)
    first = 1 / 2 + 1 - torch.sigmoid(torch.tensor(1.0)).item() - mu / 2
    second = 1 + 2 * (1 - torch.sigmoid(torch.tensor(4.0)).item()) - mu
    options = torch.tensor([[first, 0.0], [-first, 0.0]]), torch.tensor([[0.0, -second], [0.0, second]])
    assert sum(torch.allclose(state.weights["1.weight"], option) for option in options) == 1


# ---- whole runs -------------------------------------------------------------------------------------------------


def test_both_halves_by_default(tmp_path):
    settings = experiment("fedavg", models={"client": "basic(8,1)"}, method={"name": "fedkgf"})
    own = settings.build_world()
    assert own.client_models == ("kgf(basic(8,1),16)",)
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


def test_a_client_uploads_its_group_alone(tmp_path):
    settings = experiment("fedkgf", participation={"fraction": 1.0}, rounds=1)
    catchment.run(settings, tmp_path / "run")
    (line,) = (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()
    ups = [entry for entry in json.loads(line)["entries"] if entry["direction"] == "up"]
    assert sum(len(entry["clients"]) for entry in ups) == 3  # of five: there are three modules
    names = [name for entry in ups for name in entry["tensors"] if name != "(framing)"]
    expected = settings.build_world().client_architecture(0).facts.initial
    assert sorted(names) == sorted(f"weights/{name}" for name in expected)


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
    ("settings", "error", "reason"),
    [
        ({"kernels": -1}, ExperimentError, "kernels is -1; at least 0 is expected"),
        ({"mu": -1.0}, ExperimentError, "mu is -1"),
        ({"client_epochs": 0}, ExperimentError, "client_epochs is 0"),
        ({"kernels": 0, "sign": False}, ExperimentError, "sign and bias are of generated kernels, and kernels = 0"),
    ],
)
def test_settings_that_make_no_sense(settings, error, reason):
    with pytest.raises(error, match=reason):
        FedKGF(**settings)


def test_clients_of_different_architectures_are_refused_before_training():
    with pytest.raises(ModelError, match="fedkgf shares weights among clients"):
        experiment("fedkgf", models={"client": ["cnn", "resnet11"]}).build_world()
    with pytest.raises(ModelError, match="with an ordinary model"):
        experiment("fedkgf", models={"client": "kgf(cnn)"}).build_world()
