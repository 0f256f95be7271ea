"""CPU seconds of FedZKT's server beside a plain loop through the same models.

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
from catchment import process
from catchment.core.server import Server
from catchment.learning.training import copy_weights
from catchment.methods.fedzkt import sl_loss

RESULTS = Path(__file__).parent / "results" / "fedzkt.json"
DEVICES = ["cnn", "mlp", "lenet", "lenet(12,32,3)", "lenet(8,16,2)"]
ITERATIONS = 4
BATCH = 64


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


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--repeats", type=int, default=5)
    repeats = arguments.parse_args().repeats
    process.set_up()
    torch.set_num_threads(1)
    measured = {
        "devices": DEVICES, "batch": BATCH, "iterations": ITERATIONS, "repeats": repeats,
        "server": [server(width, repeats) for width in (8, 64)],
    }  # fmt: skip
    RESULTS.write_text(json.dumps(measured, indent=2) + "\n")
    print(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
