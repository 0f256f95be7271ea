"""Training steps that processes share, in double precision: equal to those of one process."""

from __future__ import annotations

import copy
import multiprocessing
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from catchment.data import Batch
from catchment.errors import RunError
from catchment.learning import parallel
from catchment.learning.optimizers import OptimizerSettings, load_optimizer_tensors, optimizer_tensors, set_rate
from catchment.learning.parallel import Assistant, Together, why_alone
from catchment.learning.precision import in_precision
from catchment.learning.steps import PerSample, fit, loss_function
from catchment.tasks import CLASSIFICATION, Classification

SIZES = (8, 7, 3)  # samples of batches: of as many rows for all, of more for some, too few to be shared
ADAM = OptimizerSettings(name="adam", lr=1e-2, weight_decay=0.1, amsgrad=True)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo")


@loss_function
def full(outputs, labels, weights, criterion, teacher, anchor=None, *, alpha):
    """Takes everything: rows of samples, weights, tensors by name, the loss of the task, a number."""
    value = criterion(outputs, labels) + alpha * (outputs - teacher).square().mean()
    return value if anchor is None else value + sum((weights[n] - w).square().sum() for n, w in anchor.items())


@loss_function
def plain(outputs, labels):
    """Cross-entropy."""
    return F.cross_entropy(outputs, labels)


def network(name) -> nn.Module:
    """With and without batch normalisation, with a weight that nothing depends on, or in lower precision."""
    torch.default_generator.manual_seed(0)
    norm = nn.GroupNorm(2, 4) if name["name"] == "groups" else nn.BatchNorm2d(4)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(16, 5))
    model.register_parameter("unused", nn.Parameter(torch.ones(1)))
    model = model.to(memory_format=torch.channels_last)
    return in_precision(model, "bfloat16", torch.device("cpu")) if name["name"] == "bfloat16" else model.double()


def join(rank: int, size: int, port: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)


def assist(rank: int, size: int, port: int, orders: Connection) -> None:
    torch.set_num_threads(1)
    join(rank, size, port)
    assistant = Assistant(network, orders.recv)
    while order := orders.recv():
        assistant.fit(**order["fit"])
    dist.destroy_process_group()


@contextmanager
def processes(size: int) -> Iterator[Together]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    here, there = zip(*(multiprocessing.Pipe() for _ in range(1, size)))
    spawn = multiprocessing.get_context("spawn")
    others = [spawn.Process(target=assist, args=(rank, size, port, end)) for rank, end in enumerate(there, 1)]
    for other in others:
        other.start()
    join(0, size, port)

    def order(said):
        for end in here:
            end.send(said)

    try:
        yield Together(order)
    finally:
        order({})
        for other in others:
            other.join()
        dist.destroy_process_group()
    assert [other.exitcode for other in others] == [0] * len(others)


@pytest.fixture(scope="module", params=[2, 3])
def together(request):
    with processes(request.param) as together:
        yield together


def batches(sizes=SIZES, dtype=torch.float64):
    draw, first = torch.Generator().manual_seed(1), 0
    for size in sizes:
        images = torch.randn(size, 2, 4, 4, generator=draw, dtype=dtype).contiguous(memory_format=torch.channels_last)
        yield Batch(images, torch.arange(size) % 5, torch.arange(first, first + size))
        first += size


def share(together, loss, model, optimizer, batches, name="groups", settings=ADAM, observe=None, **given):
    about = {"built": {"name": name}, "settings": settings, "task": CLASSIFICATION}
    return together.fit(loss, model, optimizer, batches, observe=observe, given=given, **about)


def close(found, wanted):
    for name, tensor in wanted.items():
        torch.testing.assert_close(
            found[name], tensor, rtol=1e-10, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_shared_steps_are_those_of_one_process(together):
    """Also an optimiser that made steps before, a rate that falls in between, and a weight that has no gradient."""
    alone = network({"name": "groups"})
    first = ADAM.build(alone.parameters())
    fit(plain, alone, first, batches())
    shared = copy.deepcopy(alone)
    second = ADAM.build(shared.parameters())
    load_optimizer_tensors(second, optimizer_tensors(first))
    given = {"teacher": PerSample(torch.rand(sum(SIZES), 5).double()), "alpha": 0.5}
    given["anchor"] = {name: torch.zeros_like(w) for name, w in alone.named_parameters() if name != "unused"}
    values, seen = [], []
    for model, optimizer, train in ((alone, first, fit), (shared, second, None)):
        outputs = {}

        def observe(ids, rows, outputs=outputs):
            outputs.update(zip(ids.tolist(), rows))

        def falling(optimizer=optimizer):
            for number, batch in enumerate(batches()):
                set_rate(optimizer, 1e-2 / (1 + number))
                yield batch

        if train is None:
            values.append(share(together, full, model, optimizer, falling(), observe=observe, **given))
        else:
            values.append(
                fit(full, model, optimizer, falling(), criterion=CLASSIFICATION.loss, observe=observe, **given)
            )
        seen.append(outputs)
    assert values[1] == pytest.approx(values[0], rel=1e-10)
    assert list(seen[1]) == list(seen[0]) == list(range(sum(SIZES)))
    close(dict(enumerate(seen[1].values())), dict(enumerate(seen[0].values())))
    close(shared.state_dict(), alone.state_dict())
    close(optimizer_tensors(second), optimizer_tensors(first))
    assert shared.unused.item() == 1  # as it has no gradient, weight decay does not touch it


def test_each_process_normalises_its_own_rows_on_cpus(together):
    """As one process does that takes the mean of the losses of parts; running statistics are the mean over parts."""
    count = dist.get_world_size()
    settings = OptimizerSettings(name="sgd", lr=0.1, momentum=0.9)
    shared = network({"name": "batches"})
    parts = [copy.deepcopy(shared) for _ in range(count)]  # the same weights, each with its own statistics
    optimizers = [settings.build(part.parameters()) for part in parts]
    sizes = (4 * count, 4 * count)
    for batch in batches(sizes):
        gradients = []
        for part, images, labels in zip(parts, batch.images.chunk(count), batch.labels.chunk(count)):
            part.zero_grad()
            F.cross_entropy(part(images), labels).backward()
            gradients.append([w.grad for w in part.parameters()])
        for part, optimizer in zip(parts, optimizers):
            for w, *all_parts in zip(part.parameters(), *gradients):
                w.grad = None if all_parts[0] is None else torch.empty_like(w).copy_(sum(all_parts) / count)
            optimizer.step()
    share(together, plain, shared, settings.build(shared.parameters()), batches(sizes), "batches", settings)
    wanted = parts[0].state_dict()
    for name in ("1.running_mean", "1.running_var"):
        wanted[name] = torch.stack([part.state_dict()[name] for part in parts]).mean(0)
    close(shared.state_dict(), wanted)


def test_steps_in_bfloat16_are_those_of_one_process_but_for_its_rounding(together):
    """Each process normalises four rows of eight or twelve, so that gradients differ as those of smaller batches do."""
    settings = OptimizerSettings(name="sgd", lr=0.1)
    alone = network({"name": "bfloat16"})
    shared, start = copy.deepcopy(alone), copy.deepcopy(alone)
    images = torch.randn(4, 2, 4, 4, generator=torch.Generator().manual_seed(1)).repeat(dist.get_world_size(), 1, 1, 1)
    batch = Batch(images, torch.arange(4).repeat(dist.get_world_size()), torch.arange(len(images)))  # all have the same
    fit(plain, alone, settings.build(alone.parameters()), [batch])
    share(together, plain, shared, settings.build(shared.parameters()), [batch], "bfloat16", settings)
    for here, there, before in zip(alone.parameters(), shared.parameters(), start.parameters()):
        torch.testing.assert_close(there - before, here - before, rtol=0.05, atol=2e-3)
    assert shared[1].running_var.dtype == torch.float32
    torch.testing.assert_close(shared[1].running_mean, alone[1].running_mean, rtol=0.02, atol=1e-3)


def test_a_fit_that_ends_early_leaves_the_others_ready(together):
    """Whatever fails between steps: in the batches, or in who observes the outputs."""
    model = network({"name": "groups"})
    optimizer = ADAM.build(model.parameters())

    def broken():
        yield from batches()
        raise KeyError("batches")

    def looks(ids, outputs):
        raise KeyError("outputs")

    with pytest.raises(KeyError, match="batches"):
        share(together, plain, model, optimizer, broken())
    with pytest.raises(KeyError, match="outputs"):
        share(together, plain, model, optimizer, batches(), observe=looks)
    assert share(together, plain, model, optimizer, []) == 0.0
    before = copy.deepcopy(model.state_dict())
    share(together, plain, model, optimizer, batches())
    assert not torch.equal(before["0.weight"], model.state_dict()["0.weight"])


def test_the_model_may_train_alone_in_between(together):
    """What is shared leaves nothing behind in the model."""
    model = network({"name": "groups"})
    optimizer = ADAM.build(model.parameters())
    for _ in range(2):
        share(together, plain, model, optimizer, batches())
        fit(plain, model, optimizer, batches())
    copy.deepcopy(model)


def test_a_step_that_fails_ends_the_run_and_cannot_be_blamed_on_a_client(monkeypatch):
    """A `RunError` is not undone: the other processes would wait for what does not come."""

    def gone(*given, **named):
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(parallel, "DistributedDataParallel", gone)
    model = network({"name": "groups"})
    with pytest.raises(RunError, match=r"a training step that they share \(RuntimeError: Connection closed by peer\)"):
        share(Together(lambda said: None), plain, model, ADAM.build(model.parameters()), batches())


def test_batch_normalisation_is_synchronised_for_a_while_alone():
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.BatchNorm1d(3), nn.ReLU()))
    layer, state = model[1][0], dict(model.state_dict(keep_vars=True))
    with parallel._over_all_rows(model):
        assert isinstance(model[1][0], nn.SyncBatchNorm)
        assert all(tensor is state[name] for name, tensor in model.state_dict(keep_vars=True).items())
    assert model[1][0] is layer


class Mine(Classification):
    """A task of one's own."""


def test_what_one_process_must_do_alone_is_said():
    teacher = PerSample(torch.zeros(1, 5))
    assert why_alone(plain, CLASSIFICATION, None, {}) == ""
    assert why_alone(full, CLASSIFICATION, print, {"teacher": teacher}) == ""
    assert why_alone(full, CLASSIFICATION, print, {}) == "teacher is known only after its outputs"
    assert (
        why_alone(full, Mine(), None, {"teacher": teacher}) == "the loss is that of a task of your own, classification"
    )
    noted = Together()
    assert not noted.takes(plain, "")
    assert not noted.takes(full, "so it is")
    assert noted.alone == {f"{__name__}:plain": "", f"{__name__}:full": "so it is"}
