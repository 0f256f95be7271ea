"""`serve`: a handler is a function of (declared state, message, data, derived seed), whatever it tries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from worlds_by_hand import HandlersOnly, world

from catchment.client import Client, Versions, Workbench, serve, state_from_message, state_to_message
from catchment.errors import DataError
from catchment.message import Message, Payload, Request
from catchment.method import on_client

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


def ask(handler, *, client=0, sequence=0, versions=None, bench=None, values=None, **fields):
    body = Message({} if values is None else {"values": values})
    request = Request(client, handler, fields.pop("round", 1), fields.pop("turn", 0), sequence, body, **fields)
    return serve(WORLD, request, versions or Versions(), bench or Workbench())


def test_replies_and_states_are_copies_of_the_workers_memory():
    bench, versions = Workbench(), Versions()
    first = ask("own_memory", bench=bench, versions=versions)
    ask("own_memory", bench=bench, client=1)
    assert first.body.tensors["weights/1.weight"].eq(1).all()
    assert versions.newest(100)["kept"]["1.weight"].eq(1).all()


def test_nothing_stays_in_the_workers_module():
    bench = Workbench()
    ask("leave_weights", bench=bench)
    assert ask("first_weights", bench=bench, client=1).body.tensors["weights/1.weight"].eq(0).all()


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
    assert response.error.startswith("ValueError: broken (test_client.py, line ")
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
    assert order() == order(bench=Workbench(), sequence=9)
    orders = {tuple(order(round=r, turn=t)) for r in range(1, 6) for t in range(5)}
    assert len(orders) > 10


def test_a_batch_by_number_is_that_of_the_first_request_of_the_round_in_every_request():
    def client(turn):
        return Client(WORLD, Request(1, "order", 3, turn, 0, Message({})), {}, Workbench())

    whole = list(client(0).batches(epochs=4))
    assert client(0).batches_per_epoch == 1  # three samples in batches of two: the last one joins
    assert len({tuple(batch.ids.tolist()) for batch in whole}) > 1
    for turn in (0, 5):
        for number, batch in enumerate(whole):
            assert all(mine.equal(its) for mine, its in zip(client(turn).batch(number), batch))


def test_a_client_without_samples_has_no_batch_to_give():
    empty = replace(WORLD, data=replace(WORLD.data, clients=(torch.tensor([]).long(), *WORLD.data.clients[1:])))
    with pytest.raises(DataError, match=r"client 0 has no samples to train on; another data\.partition"):
        Client(empty, Request(0, "order", 1, 0, 0, Message({})), {}, Workbench()).batch(0)


# ---- versions ----------------------------------------------------------------------------------------------------


def kept(value: float):
    return {"kept": {"n": torch.tensor([value])}}


def request(sequence: int, **fields) -> Request:
    return Request(0, "count", 1, 0, sequence, Message({}), **fields)


def number(state) -> float | None:
    return state["kept"]["n"].item() if state else None


def test_a_request_starts_from_the_newest_version_before_itself():
    versions = Versions()
    assert number(versions.before(request(0))) is None
    versions.keep(request(0), kept(10))
    versions.keep(request(4), kept(14))
    assert number(versions.before(request(7))) == 14
    assert number(versions.before(request(4))) == 10  # asked again


def test_a_new_life_disowns_what_older_lives_did_after_the_checkpoint():
    versions = Versions()
    versions.keep(request(0), kept(10))
    versions.keep(request(3, base=2), kept(13))
    versions.keep(request(6, base=2), kept(16))
    assert number(versions.before(request(8, life=1, start=2))) == 10
    assert number(versions.newest(100)) == 10


def test_what_the_last_checkpoint_and_the_reply_under_way_need_is_kept_and_no_more():
    versions = Versions()
    for sequence in range(20):
        versions.keep(request(sequence, base=12), kept(sequence))
    assert sorted(versions._kept) == [11, 18, 19]


def test_states_survive_their_bytes():
    state = {"model": {"a.b": torch.randn(3, 2), "n": torch.tensor(3)}, "cursor": {"at": torch.tensor([1, 2])}}
    again = state_from_message(Message.from_bytes(state_to_message(state).to_bytes())[0])
    assert {k: list(v) for k, v in again.items()} == {k: list(v) for k, v in state.items()}
    assert all(torch.equal(again[group][name], t) for group, ts in state.items() for name, t in ts.items())
