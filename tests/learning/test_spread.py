"""A training step that processes share, in double precision: equal to that of one process."""

from __future__ import annotations

import copy
import multiprocessing
import socket
import sys
from multiprocessing.connection import Connection

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from catchment.errors import ProtocolError, RunError
from catchment.learning.precision import in_precision
from catchment.learning.spread import Assistant, Spread

STEPS = (7, 3, 6)  # samples; the second are too few to be shared


def network(name: object) -> nn.Module:
    """Two kinds of batch normalisation, with weights and without, and a weight that nothing depends on."""
    torch.default_generator.manual_seed(0)
    if name == {"name": "bfloat16"}:
        parts = [nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5)]
        return in_precision(nn.Sequential(*parts), "bfloat16", torch.device("cpu"))
    parts = [nn.BatchNorm2d(2), nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5)]
    model = nn.Sequential(*parts, nn.BatchNorm1d(5, affine=False)).double()
    model.register_parameter("unused", nn.Parameter(torch.ones(1).double()))
    return model


def join(rank: int, port: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)


def assist(port: int, orders: Connection) -> None:
    join(1, port)
    assistant = Assistant(network)
    while order := orders.recv():
        if "forward" in order:
            assistant.forward(order["forward"], order["shapes"], order["of_rows"])
        else:
            assistant.backward()
    dist.destroy_process_group()


@pytest.fixture
def orders():
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=assist, args=(port, there))
    process.start()
    join(0, port)
    yield here
    here.send({})
    process.join()
    dist.destroy_process_group()
    assert process.exitcode == 0


@pytest.mark.skipif(sys.platform == "win32", reason="gloo")
def test_a_shared_step_is_that_of_one_process(orders):
    alone, sent = network(""), []
    shared = copy.deepcopy(alone)

    def order(said):
        sent.append(said)
        orders.send(said)

    spread = Spread(shared, {"name": "a"}, order)
    optimizers = [torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=0.1) for model in (alone, shared)]
    draw = torch.Generator().manual_seed(1)
    for size in STEPS:
        images = torch.randn(size, 2, 4, 4, generator=draw, dtype=torch.float64)
        images[:, 1] = 0  # constant, as after a ReLU that is off
        labels = torch.arange(size) % 5
        for optimizer, forward in zip(optimizers, (alone, spread)):
            optimizer.zero_grad()
            F.cross_entropy(forward(images), labels).backward()
            optimizer.step()
        for name, tensor in alone.state_dict().items():
            torch.testing.assert_close(shared.state_dict()[name], tensor, rtol=1e-10, atol=1e-12)
    assert [said["shapes"] for said in sent if "forward" in said] == [[[3, 2, 4, 4]], [[3, 2, 4, 4]]]
    assert shared.unused.item() == 1  # as it has no gradient, weight decay does not touch it
    shared.eval()
    before = len(sent)
    torch.testing.assert_close(spread(images), alone.eval()(images))
    with torch.no_grad():
        shared.train()(images)
    assert len(sent) == before


@pytest.mark.skipif(sys.platform == "win32", reason="gloo")
def test_rows_have_gradients_too(orders):
    """As an adversary needs them, who makes the rows; also of several losses, one after the other."""
    alone = network("")
    shared = copy.deepcopy(alone)
    spread = Spread(shared, {}, orders.send)
    draw = torch.Generator().manual_seed(1)
    made, weights = (torch.rand(5, *shape, generator=draw, dtype=torch.float64) for shape in ((2, 4, 4), (5,)))
    found = []
    for model, forward in ((alone, alone), (shared, spread)):
        scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
        rows = made**scale
        outputs = weights * forward(rows)
        found.append([*torch.autograd.grad(outputs.sum(), [rows, model[1].weight], retain_graph=True)])
        outputs.sin().sum().backward(inputs=[scale])
        found[-1].append(scale.grad)
    for here, there in zip(*found):
        torch.testing.assert_close(there, here, rtol=1e-10, atol=1e-12)
        assert here.abs().max() > 1e-3


@pytest.mark.skipif(sys.platform == "win32", reason="gloo")
def test_a_shared_step_in_bfloat16_is_that_of_one_process_but_for_its_rounding(orders):
    alone = network({"name": "bfloat16"})
    shared = copy.deepcopy(alone)
    images = torch.randn(6, 2, 4, 4, generator=torch.Generator().manual_seed(1))
    for forward in (alone, Spread(shared, {"name": "bfloat16"}, orders.send)):
        F.cross_entropy(forward(images), torch.arange(6) % 5).backward()
    for here, there in zip(alone.parameters(), shared.parameters()):
        torch.testing.assert_close(there.grad, here.grad, rtol=0.05, atol=0.02)
    torch.testing.assert_close(shared[1].running_mean, alone[1].running_mean, rtol=0.01, atol=1e-3)
    assert shared[1].running_var.dtype == torch.float32


def test_a_step_that_fails_ends_the_run_and_cannot_be_blamed_on_a_client(monkeypatch):
    """A `RunError` is not undone: the other processes would wait for what does not come."""

    def gone(*given):
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "broadcast", gone)
    spread = Spread(network(""), {}, lambda said: None)
    with pytest.raises(RunError, match=r"a training step that they share \(RuntimeError: Connection closed by peer\)"):
        spread(torch.ones(4, 2, 4, 4, dtype=torch.float64))


def test_a_forward_pass_may_go_without_its_backward_pass(orders):
    """A method that fails in between leaves the others ready for the next step."""
    model = network("")
    spread = Spread(model, {}, orders.send)
    images = torch.ones(4, 2, 4, 4, dtype=torch.float64)
    spread(images)
    spread(images).sum().backward()
    assert model[1].weight.grad is not None


@pytest.mark.skipif(sys.platform == "win32", reason="gloo")
def test_a_backward_pass_after_the_next_forward_pass_is_refused(orders):
    spread = Spread(network(""), {}, orders.send)
    images = torch.ones(4, 2, 4, 4, dtype=torch.float64)
    outputs = spread(images)
    spread(images).sum().backward()
    with pytest.raises(ProtocolError, match=r"have gone on to another forward pass; call backward\(\) first"):
        outputs.sum().backward()
