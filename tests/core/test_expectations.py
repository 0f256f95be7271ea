"""What a reply must look like, for every payload of the methods and for those of users."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import pytest
import torch
from torch import Tensor
from worlds import METHODS, experiment
from worlds_by_hand import HandlersOnly, world

import catchment
from catchment.core.declarations import Samples, Share, client_weights, features, ids, labels, leaving, like, logits
from catchment.core.expectations import UNDECLARED_BYTES, Expectations, Known
from catchment.core.method import handlers, on_client
from catchment.exchange.message import Message
from catchment.exchange.payload import Payload
from catchment.exchange.request import Request
from catchment.families.weights import LocalModel


@dataclass(frozen=True)
class Nothing(Payload):
    pass


@dataclass(frozen=True)
class Upload(Payload):
    logits: Annotated[Tensor, logits("n <= N_k")]
    labels: Annotated[Tensor, labels("n <= N_k", least=1)]
    ids: Annotated[Tensor, ids("n <= N_k")]
    samples: Samples
    accuracy: Share
    loss: float
    name: str = ""
    last: bool = False


@dataclass(frozen=True)
class Model(Payload):
    weights: Annotated[dict[str, Tensor], like(client_weights)]


@dataclass(frozen=True)
class Parts(Payload):
    weights: Annotated[dict[str, Tensor], like(client_weights, part=True)] | None


@dataclass(frozen=True)
class Anything(Payload):
    values: Tensor
    more: dict[str, Tensor]


@dataclass(frozen=True)
class Told(HandlersOnly):
    @on_client
    def upload(self, client, request: Nothing) -> Upload:
        raise AssertionError("never called")

    @on_client
    def model(self, client, request: Nothing) -> Model:
        raise AssertionError("never called")

    @on_client
    def parts(self, client, request: Nothing) -> Parts:
        raise AssertionError("never called")

    @on_client
    def anything(self, client, request: Nothing) -> Anything:
        raise AssertionError("never called")


CLIENTS = [([[1.0, 0.0]] * 3, [0, 1, 0]), ([[0.0, 2.0]] * 5, [1] * 5)]  # of 3 and 5 samples, 2 classes


def expectations(model="worlds_by_hand:linear"):
    method = Told()
    return Expectations.of(method, world(method, CLIENTS, model=model))


def ask(handler, client=0):
    return Request(client, handler, 1, 0, 0, Message({}))


def good(n=3, **changes):
    tensors = {"logits": torch.zeros(n, 2), "labels": torch.zeros(n, dtype=torch.int64), "ids": torch.arange(n)}
    scalars = {"samples": 3, "accuracy": 0.5, "loss": 1.0, "name": "", "last": False}
    for name, value in changes.items():
        (tensors if isinstance(value, Tensor) else scalars)[name] = value
    return Message(tensors, scalars)


def test_what_is_as_declared_fits():
    assert expectations().misfit(ask("upload"), good()) == ""
    assert expectations().misfit(ask("upload"), good(n=1)) == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"logits": torch.zeros(3, 3)}, "logits is of shape [3, 3]; size 1 should be 2"),
        ({"logits": torch.zeros(4, 2)}, "logits is of shape [4, 2]; size 0 should be at most 3"),
        ({"logits": torch.zeros(2, 2)}, "labels is of shape [3]; size 0 should be 2 as in the other fields"),
        ({"logits": torch.zeros(3)}, "logits is float32 of 1 dimensions; float32 of 2 is expected"),
        ({"logits": torch.zeros(3, 2).double()}, "logits is float64 of 2 dimensions; float32 of 2 is expected"),
        ({"logits": torch.full((3, 2), torch.nan)}, "logits has numbers from nan to nan; -1e+06 to 1e+06 is expected"),
        ({"logits": torch.full((3, 2), 3e38)}, "logits has numbers from 3e+38 to 3e+38; -1e+06 to 1e+06 is expected"),
        ({"labels": torch.tensor([0, 1, 2])}, "labels has numbers from 0 to 2; 0 to 1 is expected"),
        ({"labels": torch.tensor([0, 1, -1])}, "labels has numbers from -1 to 1; 0 to 1 is expected"),
        ({"ids": torch.tensor([0, 1, -1])}, "ids has numbers from -1 to 1; 0 to 9.0072e+15 is expected"),
        ({"\x1b[2Jx": torch.zeros(1)}, "no tensor '\\x1b[2Jx' is expected"),
        ({"samples": 2}, "samples is 2; 3 to 3 is expected"),
        ({"samples": 10**400}, "samples is a number of more than 300 digits; 3 to 3 is expected"),
        ({"samples": True}, "samples is True; int is expected"),
        ({"accuracy": 1.5}, "accuracy is 1.5; 0 to 1 is expected"),
        ({"accuracy": float("nan")}, "accuracy is nan; 0 to 1 is expected"),
        ({"loss": float("inf")}, "loss is inf; -9.0072e+15 to 9.0072e+15 is expected"),
        ({"last": 1}, "last is 1; bool is expected"),
        ({"name": "x" * 1001}, "name is a text of 1,001 characters; at most 1,000 are expected"),
    ],
)
def test_what_is_not_as_declared_is_named(changes, reason):
    assert expectations().misfit(ask("upload"), good(**changes)) == reason


def test_no_rows_are_refused_where_one_is_needed():
    assert expectations().misfit(ask("upload"), good(0)) == "labels is of shape [0]; at least 1 row is expected"


NORMED = {"0.weight": torch.ones(1), "0.bias": torch.zeros(1), "0.running_mean": torch.zeros(1),
          "0.running_var": torch.ones(1), "0.num_batches_tracked": torch.tensor(1), "2.weight": torch.zeros(2, 2),
          "2.bias": torch.zeros(2)}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"2.bias": torch.zeros(3)}, "weights/2.bias is of shape [3]; size 0 should be 2"),
        ({"2.bias": None}, "weights has 6 tensors, 7 are expected; weights/2.bias is missing"),
        ({"3.bias": torch.zeros(2)}, "no tensor 'weights/3.bias' is expected"),
        ({"2.bias": torch.full((2,), torch.inf)}, "weights has the norm inf; at most"),
        ({"2.bias": torch.tensor([torch.nan, 0])}, "weights has the norm nan; at most"),
        ({"2.bias": torch.full((2,), 3e38)}, "weights has the norm inf; at most"),
        ({"2.bias": torch.full((2,), 1e9)}, "weights has the norm 1.41421e+09; at most"),
        ({"0.running_var": torch.tensor([-1.0])}, "weights/0.running_var has numbers from -1 to -1; 0 to 1e+06"),
        ({"0.running_mean": torch.tensor([torch.nan])}, "weights/0.running_mean has numbers from nan to nan"),
        ({"0.num_batches_tracked": torch.tensor(-1)}, "weights/0.num_batches_tracked has numbers from -1 to -1"),
        ({"0.num_batches_tracked": torch.tensor(2**62)}, "weights/0.num_batches_tracked has numbers from 4.6"),
        ({"0.num_batches_tracked": torch.tensor(1.0)}, "weights/0.num_batches_tracked is float32 of 0 dimensions"),
    ],
)
def test_weights_are_those_of_the_architecture(change, reason):
    given = {**NORMED, **change}
    message = Message({f"weights/{name}": tensor for name, tensor in given.items() if tensor is not None})
    found = expectations("worlds_by_hand:normed").misfit(ask("model"), message)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


def test_a_part_of_the_weights_fits_where_parts_are_declared_and_none_where_it_is_optional():
    expected = expectations("worlds_by_hand:normed")
    assert expected.misfit(ask("parts"), Message({"weights/2.bias": torch.zeros(2)})) == ""
    assert expected.misfit(ask("parts"), Message({})) == ""
    assert "no tensor" in expected.misfit(ask("parts"), Message({"weights/x": torch.zeros(2)}))


def test_of_undeclared_fields_only_numbers_are_checked():
    expected = expectations()
    message = Message({"values": torch.ones(3), "more/a": torch.ones(2)})
    assert expected.misfit(ask("anything"), message) == ""
    message = Message({"values": torch.ones(3), "more/a": torch.tensor([torch.nan])})
    assert expected.misfit(ask("anything"), message) == "more/a holds NaN or infinity"
    message = Message({"values": torch.ones(3), "more/a": torch.ones(2).to(torch.float8_e4m3fn)})
    assert "float8_e4m3fn, whose numbers cannot be checked" in expected.misfit(ask("anything"), message)
    assert expected.largest(ask("anything")) > UNDECLARED_BYTES


def test_the_largest_reply_follows_from_the_declarations():
    expected = expectations()
    least = 3 * (2 * 4 + 8 + 8)
    assert least < expected.largest(ask("upload")) < least + 100_000
    assert expected.largest(ask("upload", 1)) - expected.largest(ask("upload", 0)) == 2 * (2 * 4 + 8 + 8)


def test_a_coded_tensor_is_refused_before_it_is_decoded():
    refuses = partial(expectations().refuses, ask("upload"))
    assert refuses("logits", torch.float32, torch.Size([3, 2])) == ""
    assert refuses("logits", torch.float32, torch.Size([2**30, 2])) != ""
    assert refuses("other", torch.float32, torch.Size([1])) == "no tensor 'other' is expected"


def test_an_expectation_is_made_once_for_each_architecture():
    expected = expectations()
    assert expected.expectation("upload", 0) is expected.expectation("upload", 1)


def test_how_many_samples_a_client_with_own_data_has_is_fixed_by_its_first_answer():
    data = {"name": "digits", "clients": 2, "partition": {"name": "own"}, "most_samples": 50}
    own = catchment.Experiment.from_dict({"data": data, "engine": "flower", "models": {"client": "mlp"}})
    expected = Expectations.of(own.build_method(), own.build_world())
    weights = expected.world.client_architecture(0).facts.initial

    def fits(samples):
        return expected.misfit(ask("local_training"), LocalModel(weights, {}, samples, 1.0).pack())

    assert fits(51) == "samples is 51; 1 to 50 (data.most_samples) is expected"
    assert fits(20) == ""
    assert fits(20) == ""
    assert fits(30) == "samples is 30; 20 to 20 is expected"
    assert expected.known(0) == Known(20, True)
    assert expected.known(1) == Known(50, False)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_of_what_kind_all_is_that_leaves(name):
    method = type(experiment(name).build_method())
    table = leaving(method)
    assert {row.handler for row in table} <= set(handlers(method))
    assert "unknown" not in {row.kind for row in table}


def test_what_leaves_is_read_from_the_payloads():
    table = {(row.handler, row.field): (row.kind, row.shape) for row in leaving(Told)}
    assert table["upload", "labels"] == ("labels", "int64 [n <= N_k]")
    assert table["upload", "samples"] == ("counts", "int")
    assert table["model", "weights"] == ("weights", "client weights")
    assert table["parts", "weights"] == ("weights", "part of client weights")
    assert table["anything", "values"] == ("unknown", "tensor")
    assert features("N_k").kind == "features"
