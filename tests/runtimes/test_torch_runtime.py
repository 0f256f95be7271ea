"""`serve`: a handler is a function of (declared state, message, data, derived seed), whatever it tries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from worlds_by_hand import HandlersOnly, world

from catchment.client.state import Versions
from catchment.core.method import on_client
from catchment.core.worker import WorkerCache
from catchment.exchange.message import Message
from catchment.exchange.payload import Payload
from catchment.exchange.request import Request
from catchment.runtimes.torch import serve

CLIENTS = [([[1.0, 0.0]] * 4, [0, 1, 0, 1]), ([[0.0, 2.0]] * 3, [1] * 3)]


@dataclass(frozen=True)
class In(Payload):
    values: Tensor | None = None


@dataclass(frozen=True)
class Out(Payload):
    weights: dict[str, Tensor]


@dataclass(frozen=True)
class Mischief(HandlersOnly):
    persistent: ClassVar[tuple[str, ...]] = ("kept",)

    @on_client
    def own_memory(self, client, request: In) -> Out:
        model = client.model()
        with torch.no_grad():
            model[1].weight.add_(client.id + 1)
        client.state["kept"] = model.state_dict()
        return Out(model.state_dict())

    @on_client
    def leave_weights(self, client, request: In) -> Out:
        with torch.no_grad():
            client.model()[1].weight.fill_(99)
        return Out({})

    @on_client
    def first_weights(self, client, request: In) -> Out:
        return Out(client.model().state_dict())

    @on_client
    def change_request(self, client, request: In) -> Out:
        request.values.add_(1)
        return Out({})

    @on_client
    def change_state(self, client, request: In) -> Out:
        client.state["kept"]["0"].add_(1)
        return Out({})

    @on_client
    def undeclared(self, client, request: In) -> Out:
        client.state["secret"] = {"x": torch.ones(1)}
        return Out({})

    @on_client
    def count(self, client, request: In) -> Out:
        old = client.state.get("kept", {"n": torch.zeros(1)})["n"]
        client.state["kept"] = {"n": old + 1}
        return Out({"n": old + 1})

    @on_client
    def half_way(self, client, request: In) -> Out:
        client.state["kept"] = {"n": torch.full((1,), 50.0)}
        raise ValueError("broken")

    @on_client
    def wrong_type(self, client, request: In) -> Out:
        return In(torch.ones(1))

    @on_client
    def with_graph(self, client, request: In) -> Out:
        return Out({"logits": client.model()(torch.ones(2, 1, 1, 2))})

    @on_client
    def work(self, client, request: In) -> Out:
        model = client.model()
        for batch in client.batches():
            model(batch.images)
        with torch.no_grad():
            model(torch.ones(5, 1, 1, 2))
        return Out({})

    @on_client
    def order(self, client, request: In) -> Out:
        return Out({"ids": torch.cat([batch.ids for batch in client.batches()])})


WORLD = world(Mischief(), CLIENTS, batch_size=2)


def ask(handler, *, client=0, sequence=0, versions=None, cache=None, values=None, **fields):
    body = Message({} if values is None else {"values": values})
    request = Request(client, handler, fields.pop("round", 1), fields.pop("turn", 0), sequence, body, **fields)
    return serve(WORLD, request, versions or Versions(), cache or WorkerCache())


def test_replies_and_states_are_copies_of_the_workers_memory():
    cache, versions = WorkerCache(), Versions()
    first = ask("own_memory", cache=cache, versions=versions)
    ask("own_memory", cache=cache, client=1)
    assert first.body.tensors["weights/1.weight"].eq(1).all()
    assert versions.newest(100)["kept"]["1.weight"].eq(1).all()


def test_nothing_stays_in_the_workers_module():
    cache = WorkerCache()
    ask("leave_weights", cache=cache)
    assert ask("first_weights", cache=cache, client=1).body.tensors["weights/1.weight"].eq(0).all()


def test_requests_and_states_are_read_only():
    response = ask("change_request", values=torch.ones(2))
    assert response.failed
    assert "changed a tensor of its request or of client.state in place" in response.error
    versions = Versions()
    versions.restore({"kept": {"0": torch.zeros(1)}})
    assert "in place" in ask("change_state", versions=versions).error


def test_undeclared_state_is_refused():
    assert ask("undeclared").error == "client.state has secret; persistent declares kept"


def test_a_failed_handler_leaves_the_state_as_it_was_and_says_where():
    versions = Versions()
    ask("count", versions=versions, sequence=0)
    response = ask("half_way", versions=versions, sequence=1)
    assert response.failed
    assert response.body is None
    assert response.error.startswith("ValueError: broken (test_torch_runtime.py, line ")
    assert ask("count", versions=versions, sequence=2).body.tensors["weights/n"].item() == 2


def test_asides_read_the_state_and_change_nothing():
    versions = Versions()
    ask("count", versions=versions, sequence=0)
    assert ask("count", versions=versions, sequence=1, purpose="evaluation").body.tensors["weights/n"].item() == 2
    assert ask("count", versions=versions, sequence=1).body.tensors["weights/n"].item() == 2


def test_a_reply_of_another_class_is_refused():
    assert ask("wrong_type").error == "wrong_type returned a In; it is declared to return Out"


def test_unknown_handlers_are_a_failed_reply():
    assert "no client handler missing" in ask("missing").error


def test_no_graph_leaves_the_client():
    assert not ask("with_graph").body.tensors["weights/logits"].requires_grad


def test_work_is_counted_three_forward_passes_for_a_training_step():
    assert ask("work").macs == (4 * 3 + 5) * 2 * 2  # 4 samples trained, 5 looked at, a 2x2 matrix


def test_the_order_of_batches_depends_on_client_round_and_turn_only():
    order = lambda **fields: ask("order", **fields).body.tensors["weights/ids"].tolist()  # noqa: E731
    assert order() == order(cache=WorkerCache(), sequence=9)
    orders = {tuple(order(round=r, turn=t)) for r in range(1, 6) for t in range(5)}
    assert len(orders) > 10
