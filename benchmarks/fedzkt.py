"""CPU seconds of FedZKT's server beside a plain loop through the same models, and of ten devices in one call or a loop.

    python benchmarks/fedzkt.py             # some minutes

The plain loop is Algorithm 3 as one would first write it: modules as PyTorch makes them, `backward()` of everything,
teachers with weights that want gradients. Both do the same arithmetic from the same weights and noise; what they reach
is compared. Everything runs in one process on one thread, interleaved; medians of CPU time are reported, since the
machine is shared. Results go to `benchmarks/results/fedzkt.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import catchment
from catchment import models, process
from catchment.core.server import Server
from catchment.learning.ensembles import _Loop, _Stack
from catchment.learning.training import copy_weights
from catchment.methods.fedzkt import sl_loss

RESULTS = Path(__file__).parent / "results" / "fedzkt.json"
DEVICES = ["cnn", "mlp", "lenet", "lenet(12,32,3)", "lenet(8,16,2)"]
ITERATIONS = 4
BATCH = 64
TEACHERS = 10
TAUGHT = (("mlp", (1, 8, 8)), ("mlp", (1, 28, 28)), ("lenet", (1, 28, 28)), ("cnn", (1, 28, 28)))


def images():
    """A data set of random images: speed does not depend on what they show."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (50, 1, 28, 28), dtype=torch.uint8, generator=generator)
    return catchment.Dataset.of(pixels, torch.arange(50) % 10, pixels, torch.arange(50) % 10)


def experiment(width: int) -> catchment.Experiment:
    return catchment.Experiment.from_dict(
        {
            "path": str(Path(__file__).parent), "data": {"name": "fedzkt:images", "clients": len(DEVICES)},
            "method": {"name": "fedzkt", "iterations": ITERATIONS, "width": width, "milestones": "none"},
            "models": {"client": DEVICES, "server": "cnn"},
            "optimizer": {"server": {"name": "sgd", "lr": 0.01, "batch_size": BATCH}},
        }
    )  # fmt: skip


class Sides:
    """The server of the library, and the plain loop, from the same first weights."""

    def __init__(self, width: int) -> None:
        self.world = experiment(width).build_world()
        self.method = self.world.method

    def begin(self):
        server = Server(self.world)
        server.round = 1
        state = self.method.init(server)
        state.weights = {k: self.world.first_weights(k) for k in range(len(DEVICES))}
        return server, state

    def catchment(self):
        server, state = self.begin()
        began = time.process_time()
        self.method.server_update(server, state, range(len(DEVICES)))
        return time.process_time() - began, copy_weights(state.model)

    def plain(self):
        server, state = self.begin()
        plain = torch.contiguous_format
        f, g = state.model.to(memory_format=plain), state.generator.to(memory_format=plain)
        began = time.process_time()
        devices = [self.method.device_model(server, state, k).to(memory_format=plain) for k in state.weights]
        rate = self.world.server_optimizer.lr
        optimizer_f = torch.optim.SGD(f.parameters(), lr=rate)
        optimizer_g = torch.optim.Adam(g.parameters(), lr=self.method.generator_lr)
        optimizers = [torch.optim.SGD(device.parameters(), lr=rate) for device in devices]
        for device in devices:
            device.eval()
        for z, again in self.method.noises(server, "to_global", pairs=True):
            x = g(z)
            loss = -sl_loss(f(x), torch.stack([device(x) for device in devices]))
            optimizer_g.zero_grad()
            loss.backward()
            optimizer_g.step()
            x = g(again).detach()
            loss = sl_loss(f(x), torch.stack([device(x) for device in devices]).detach())
            optimizer_f.zero_grad()
            loss.backward()
            optimizer_f.step()
        for (z,) in self.method.noises(server, "to_devices"):
            x = g(z).detach()
            teacher = f(x).detach().log_softmax(1)
            for device, optimizer in zip(devices, optimizers):
                loss = F.kl_div(device(x).log_softmax(1), teacher, reduction="batchmean", log_target=True)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return time.process_time() - began, copy_weights(f)


def server(width: int, repeats: int) -> dict:
    sides = Sides(width)
    seconds: dict[str, list[float]] = {"plain": [], "catchment": []}
    reached = {}
    for _ in range(repeats + 1):  # the first warms up
        for name, values in seconds.items():
            spent, reached[name] = getattr(sides, name)()
            values.append(spent / ITERATIONS)
    apart = max((reached["plain"][n] - w).abs().max().item() for n, w in reached["catchment"].items())
    ratio = statistics.median(a / b for a, b in list(zip(*seconds.values()))[1:])
    return {
        "width": width, "iteration_s": {n: statistics.median(v[1:]) for n, v in seconds.items()},
        "plain_over_catchment": ratio, "weights_apart": apart,
    }  # fmt: skip


def ensemble(name: str, shape: tuple[int, int, int], repeats: int) -> dict:
    """Ten devices of one architecture, as teachers (the gradient of images) and as students (a step of weights)."""
    devices = [models.build(name, shape, 10, seed).eval() for seed in range(TEACHERS)]
    for device in devices:
        device.to(memory_format=torch.channels_last)
    x = torch.randn(BATCH, *shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    target = torch.full((BATCH, 10), 0.1)
    ways = {"loop": _Loop(devices), "one call": _Stack(devices)}
    optimizers = {way: torch.optim.SGD(group.parameters(), lr=1e-6, fused=True) for way, group in ways.items()}

    def teach(way: str) -> torch.Tensor:
        loss = (target - ways[way](x).softmax(2).mean(0)).abs().sum(1).mean()
        return torch.autograd.grad(loss, x)[0]

    def learn(way: str) -> torch.Tensor:
        loss = (target - ways[way](x.detach()).softmax(2)).abs().sum(2).mean(1).sum()
        optimizers[way].zero_grad()
        loss.backward()
        optimizers[way].step()
        return loss.detach()

    found: dict = {"model": name, "shape": list(shape)}
    for side, work in (("teachers", teach), ("students", learn)):
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        results = {}
        for _ in range(repeats + 1):  # the first warms up
            for way in ways:
                began = time.process_time()
                for _ in range(5):
                    results[way] = work(way)
                seconds[way].append((time.process_time() - began) / 5)
        assert torch.allclose(results["loop"], results["one call"], atol=1e-5)
        found[side] = {
            "ms": {way: 1e3 * statistics.median(values[1:]) for way, values in seconds.items()},
            "loop_over_one_call": statistics.median(a / b for a, b in list(zip(*seconds.values()))[1:]),
        }
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--repeats", type=int, default=5)
    repeats = arguments.parse_args().repeats
    process.set_up()
    torch.set_num_threads(1)
    measured = {
        "devices": DEVICES, "teachers": TEACHERS, "batch": BATCH, "iterations": ITERATIONS, "repeats": repeats,
        "server": [server(width, repeats) for width in (8, 64)],
        "ensembles": [ensemble(name, shape, repeats) for name, shape in TAUGHT],
    }  # fmt: skip
    RESULTS.write_text(json.dumps(measured, indent=2) + "\n")
    print(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
