"""DGC, FedCOM, FedCAMS, SmartIdx: their equations by hand, what crosses, and messages that were spoiled on the way."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from worlds import experiment
from worlds_by_hand import world

import catchment
from catchment.codecs import Codecs
from catchment.core.fleet import Fleet
from catchment.core.ledger import Ledger
from catchment.core.server import Server
from catchment.errors import ExperimentError
from catchment.exchange.message import Message
from catchment.learning.schedules import Schedule
from catchment.methods.dgc import DGC
from catchment.methods.fedavg import FedAvg
from catchment.methods.fedcams import FedCAMS, State
from catchment.methods.fedcom import FedCOM
from catchment.methods.smartidx import SmartIdx
from catchment.reading import read_table
from catchment.simulation.inprocess import InProcess

# Client 0 has one sample x = (1, 0) of class 0, client 1 has three of x = (0, 2) of class 1. As in test_fedavg, a step
# of rate 1 from zero takes them to W0 and W1.
CLIENTS = [([[1.0, 0.0]], [0]), ([[0.0, 2.0]] * 3, [1] * 3)]
W0 = torch.tensor([[1 / 2, 0.0], [-1 / 2, 0.0]])
W1 = torch.tensor([[0.0, -1.0], [0.0, 1.0]])
MEAN = W0 / 4 + W1 * 3 / 4


CONSTANT = Schedule()
HALVES = Schedule("step", every=1, factor=0.5)  # rates of 1, 1/2, 1/4


def rounds(method, number: int, client=CONSTANT, server=CONSTANT, **settings):
    """The global weights after some rounds, without codecs."""
    own = world(method, CLIENTS, **settings)
    own = dataclasses.replace(
        own,
        client_optimizer=dataclasses.replace(own.client_optimizer, schedule=client),
        server_optimizer=dataclasses.replace(own.server_optimizer, schedule=server),
    )
    server, fleet = Server(own), Fleet(InProcess(own), method, Ledger(), seed=0)
    state = method.init(server)
    for n in range(1, number + 1):
        server.round = n
        fleet.begin_round(n)
        method.round(server, state, fleet)
    return state.weights


@pytest.mark.parametrize("method", [DGC(), SmartIdx(), FedCOM()], ids=lambda m: type(m).__name__)
def test_without_its_codec_each_is_fedavg(method):
    assert torch.equal(rounds(method, 2)["1.weight"], rounds(FedAvg(), 2)["1.weight"])
    model = {"model": "worlds_by_hand:normed"}
    expected = rounds(FedAvg(), 2, **model)
    assert all(torch.allclose(w, expected[name]) for name, w in rounds(method, 2, **model).items())


# ---- DGC --------------------------------------------------------------------------------------------------------


def test_dgc_says_what_travels():
    assert DGC(share=0.25, momentum=0.5, warmup=2).codecs == ("up:weights/*=update+momentum(0.5)+topk(0.25,2)",)


# ---- FedCOM -----------------------------------------------------------------------------------------------------


def test_the_server_goes_a_part_of_the_way():
    assert torch.allclose(rounds(FedCOM(server_rate=0.5), 1)["1.weight"], MEAN / 2)
    halfway = rounds(FedCOM(server_rate=0.5), 1, model="worlds_by_hand:normed")
    whole = rounds(FedAvg(), 1, model="worlds_by_hand:normed")
    assert torch.allclose(halfway["0.running_var"], whole["0.running_var"])  # buffers are not gone towards


def gradient(w: torch.Tensor, x: list[float], label: int) -> torch.Tensor:
    """Of cross-entropy for one sample: (p - y) x^T."""
    given = torch.tensor(x)
    p = (w @ given).softmax(0)
    p[label] -= 1
    return p[:, None] * given


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_tracking_corrects_gradients_by_the_difference_from_the_mean(rate):
    # After round 1, delta_k = (0 - W_k) - (0 - MEAN); eta = tau = 1. Round 2 steps along g - delta_k.
    after = rounds(FedCOM(tracking=True, server_rate=rate), 2)["1.weight"]
    w = rate * MEAN
    local = [
        w - (gradient(w, [1.0, 0.0], 0) - (MEAN - W0)),
        w - (gradient(w, [0.0, 2.0], 1) - (MEAN - W1)),
    ]
    assert torch.allclose(after, w + rate * (local[0] / 4 + local[1] * 3 / 4 - w))


def test_the_servers_rate_falls_with_its_schedule():
    after = rounds(FedCOM(), 2, server=HALVES)["1.weight"]
    towards = MEAN - gradient(MEAN, [1.0, 0.0], 0) / 4 - gradient(MEAN, [0.0, 2.0], 1) * 3 / 4
    assert torch.allclose(after, (MEAN + towards) / 2)


def test_tracking_divides_changes_by_the_rate_of_their_round():
    # delta_k grows by the change of a round over its rate, less the mean; rates are 1, 1/2, 1/4 and tau is 1.
    samples, shares, w = [([1.0, 0.0], 0), ([0.0, 2.0], 1)], [1 / 4, 3 / 4], torch.zeros(2, 2)
    delta = [torch.zeros(2, 2), torch.zeros(2, 2)]
    for rate in (1.0, 0.5, 0.25):
        local = [w - rate * (gradient(w, *sample) - d) for sample, d in zip(samples, delta)]
        mean = sum(share * own for share, own in zip(shares, local))
        delta = [d + (mean - own) / rate for d, own in zip(delta, local)]
        w = mean
    assert torch.allclose(rounds(FedCOM(tracking=True), 3, client=HALVES)["1.weight"], w)


SEEN: dict[tuple[int, int], dict[str, torch.Tensor]] = {}  # corrections by round and client


@dataclasses.dataclass(frozen=True)
class Watched(FedCOM):
    """Keeps the corrections that clients use."""

    def correction(self, client, weights):
        return SEEN.setdefault((client.round, client.id), super().correction(client, weights))


def test_corrections_are_of_quantised_changes_and_sum_to_zero():
    """Of three clients with equally many samples; with changes before they are quantised a remainder would be left."""
    SEEN.clear()
    noise = 0.2 * torch.randn(3, 2, 64, generator=torch.Generator().manual_seed(1))
    clients = [(rows.tolist(), [k, 3 + k]) for k, rows in enumerate(noise)]
    method = Watched(tracking=True)
    own = dataclasses.replace(world(method, clients, classes=8), codecs=Codecs.parse(method.codecs))
    server, fleet = Server(own), Fleet(InProcess(own), method, Ledger(), seed=0, codecs=own.codecs)
    state = method.init(server)
    after = [state.weights["1.weight"]]
    for n in (1, 2, 3):
        server.round = n
        fleet.begin_round(n)
        method.round(server, state, fleet)
        after.append(state.weights["1.weight"])
    for n in (2, 3):
        deltas = [SEEN[n, k]["1.weight"] for k in range(3)]
        assert all(delta.abs().max() > 0.01 for delta in deltas)
        assert torch.allclose(sum(deltas), torch.zeros(8, 64), atol=1e-6)
    # The change of client 0 in round 1, W_0 in 8 bits: delta_0 = mean change - own change, and eta = tau = 1.
    x, y = noise[0], torch.nn.functional.one_hot(torch.tensor([0, 3]), 8)
    change = -(torch.full((2, 8), 1 / 8) - y).T @ x / 2
    low, high = change.amin(1, keepdim=True).clamp(max=0), change.amax(1, keepdim=True).clamp(min=0)
    step = (high - low) / 255
    zero = (-low / step).round()
    quantised = ((change / step + zero).round() - zero) * step
    assert torch.allclose(SEEN[2, 0]["1.weight"], after[1] - after[0] - quantised, atol=1e-6)


def test_the_first_round_has_nothing_to_track():
    assert torch.allclose(rounds(FedCOM(tracking=True), 1)["1.weight"], MEAN)


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [({"name": "adam"}, '"adam"'), ({"name": "sgd", "momentum": 0.9}, '"sgd" with momentum 0.9')],
)
def test_tracking_needs_plain_sgd(optimizer, said):
    with pytest.raises(ExperimentError, match=f"{said}: set name = .sgd. without momentum"):
        experiment("fedcom", optimizer={"client": optimizer}).build_world()


# ---- FedCAMS ----------------------------------------------------------------------------------------------------


def test_a_step_of_fedams_by_hand():
    method = FedCAMS(server_rate=2.0, beta1=0.5, beta2=0.75, epsilon=0.04)
    server, zero = Server(world(method, CLIENTS)), {"w": torch.zeros(2)}
    state = State({"w": torch.tensor([1.0, 1.0]), "count": torch.tensor(3)}, zero, zero, zero)
    # Delta = (2, 0.2): m = (1, 0.1), v = (1, 0.01), v_hat = (1, 0.04): steps of 2 * (1, 0.1 / 0.2).
    method.step(server, state, {"w": torch.tensor([3.0, 1.2]), "count": torch.tensor(5)})
    assert state.weights["w"].tolist() == pytest.approx([3, 2])
    assert int(state.weights["count"]) == 5
    # Delta = (0, 0): m = (0.5, 0.05), v = (0.75, 0.0075), v_hat stays.
    method.step(server, state, {"w": state.weights["w"], "count": torch.tensor(5)})
    assert state.weights["w"].tolist() == pytest.approx([3 + 2 * 0.5, 2 + 2 * 0.05 / 0.2])
    assert state.v_hat["w"].tolist() == pytest.approx([1, 0.04])


def test_fedcams_says_what_travels():
    assert FedCAMS().codecs == ("up:weights/*=update+feedback+sign",)
    assert FedCAMS(compressor="topk", share=0.25).codecs == ("up:weights/*=update+feedback+topk(0.25)",)


# ---- settings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "table", "reason"),
    [
        (DGC, {"share": 0}, "share is 0; a share above 0 up to 1"),
        (DGC, {"momentum": 1.0}, "momentum is 1.0; a share from 0 to below 1"),
        (DGC, {"warmup": -1}, "warmup is -1; at least 0"),
        (SmartIdx, {"share": 1.5}, "share is 1.5; a share above 0 up to 1"),
        (FedCOM, {"server_rate": 0}, "server_rate is 0; a number above 0"),
        (FedCAMS, {"share": 0}, "share is 0"),
        (FedCAMS, {"beta1": 1.0}, "beta1 is 1.0; a share from 0 to below 1"),
        (FedCAMS, {"epsilon": 0}, "epsilon is 0; a number above 0"),
    ],
)
def test_settings_that_make_no_sense(method, table, reason):
    with pytest.raises(ExperimentError, match=reason):
        read_table(method, table)


# ---- what crosses -----------------------------------------------------------------------------------------------


def up_of_parameters(result) -> int:
    return result["bytes_by_field"]["up"]["weights"]


RATIOS = {  # of 32 bits a number, beside what is too small to be coded
    "dgc": ({"name": "dgc", "warmup": 0}, 16),  # a value and a position for each of 1/32
    "fedcom": ({"name": "fedcom"}, 4),
    "fedcams": ({"name": "fedcams"}, 32),
    "fedcams, topk": ({"name": "fedcams", "compressor": "topk"}, 32),
    "smartidx": ({"name": "smartidx"}, 27),  # 32 bits a value and few more for its place
}


@pytest.mark.parametrize("name", RATIOS)
def test_every_byte_that_is_saved_is_saved_in_the_ledger(name):
    method, ratio = RATIOS[name]
    settings = {"models": {"client": "basic(16,1)"}, "rounds": 1, "data": {"train": 50, "test": 10, "clients": 5}}
    averaged = up_of_parameters(catchment.run(experiment("fedavg", **settings)))
    coded = up_of_parameters(catchment.run(experiment("fedavg", method=method, **settings)))
    assert 0.75 * ratio < averaged / coded < 1.1 * ratio


def test_rules_of_the_experiment_come_after_those_of_the_method():
    own = experiment("fedcams", wire={"codecs": ["weights/*=fp16"]}).build_world()
    assert str(own.codecs.chain("weights/x", "up")) == "update+feedback+sign"
    assert str(own.codecs.chain("weights/x", "down")) == "fp16"


# ---- uploads that are wrong -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dgc", "fedcom", "fedcams", "smartidx, base kernels"])
def test_compressors_take_another_aggregation_than_the_mean(name):
    plain, robust = (catchment.run(experiment(name, rounds=1, aggregation={"name": a})) for a in ("mean", "median"))
    assert plain["fingerprint"] != robust["fingerprint"]


class Spoiling(InProcess):
    """A world in which the uploads of client 1 arrive with other bytes in one coded part."""

    part = ""

    def pull(self, until):
        response = super().pull(until)
        if response is None or response.client != 1 or response.body is None or response.aside:
            return response
        tensors = dict(response.body.tensors)
        name = next((name for name in tensors if name.endswith(f":{self.part}")), None)
        assert name is not None, list(tensors)
        tensors[name] = tensors[name][:-1]
        return response._replace(body=Message(tensors, response.body.scalars))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("dgc", "positions"),
        ("fedcom", "values"),
        ("fedcams", "values"),
        ("smartidx, base kernels", "index"),
        ("fedpm", "gaps"),
    ],
)
def test_a_spoiled_message_is_refused_and_the_round_goes_on(name, part, monkeypatch):
    monkeypatch.setattr(Spoiling, "part", part)
    monkeypatch.setattr("catchment.config.experiment.InProcess", Spoiling)
    events = []
    result = catchment.run(
        experiment(name, participation={"fraction": 1.0}), observe=lambda record: events.extend(record["events"])
    )
    assert (result["refused"], result["failed"], result["lost"]) == (3, 0, 0)
    assert {(event["what"], event["client"]) for event in events} == {("refused", 1)}
    assert all("coded tensor" in event["why"] for event in events)
