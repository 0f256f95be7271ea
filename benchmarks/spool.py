"""How much memory the server needs for FedGKT's uploads: all feature maps of a round, spooled or held in memory.

    python benchmarks/spool.py                               # 16 clients x 3,125 samples of 16x32x32: 3 GiB, minutes
    python benchmarks/spool.py --clients 4 --samples 200     # smaller; prints, keeps nothing

The method and its server are the real ones, for one round: ResNet-10 trains for one epoch on what 16 clients sent.
Clients are a function that draws uploads. Resident memory is read from /proc before the round, and its peak after it,
each way in a fresh process. Results of the whole size go to `benchmarks/results/spool.json`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "spool.json"
CLIENTS = 16
SAMPLES = 3_125  # a client
WAYS = ("spooled", "held in memory")


def images():
    """Images that are only counted: the uploads are drawn."""
    import torch

    import catchment

    count = int(os.environ["SPOOL_CLIENTS"]) * int(os.environ["SPOOL_SAMPLES"])
    pixels = torch.zeros(count + 1, 3, 32, 32, dtype=torch.uint8)
    labels = torch.arange(count + 1) % 10
    return catchment.Dataset.of(pixels[:-1], labels[:-1], pixels[-1:], labels[-1:], classes=[str(c) for c in range(10)])


def build_world(clients: int):
    import catchment

    return catchment.Experiment.from_dict(
        {
            "path": str(Path(__file__).parent),
            "method": {"name": "fedgkt"},
            "data": {"name": "spool:images", "clients": clients, "partition": {"name": "iid"}},
            "models": {"client": "resnet8", "server": "half(1,1,1)"},
            "optimizer": {"server": {"name": "sgd", "lr": 0.01, "batch_size": 256}},
        }
    ).build_world()


def upload(world, request):
    """What a client might send: features, logits, labels and ids of all its samples."""
    import torch

    from catchment.exchange.request import Response
    from catchment.methods.fedgkt import Knowledge

    ids = torch.as_tensor(world.data.clients[request.client])
    draw = torch.Generator().manual_seed(request.client)
    features = torch.randn(len(ids), *world.client_architecture(0).facts.features, generator=draw).relu_()
    logits = torch.randn(len(ids), world.classes, generator=draw)
    body = Knowledge(features, logits, world.data.dataset.train.labels[ids], ids).pack()
    return Response(request.client, request.sequence, body)


class Held:
    """In the place of a spool: uploads in memory, put together before training."""

    def __init__(self):
        self.parts = {}
        self.whole = None

    def __contains__(self, client):
        return client in self.parts

    def put(self, client, rows):
        self.parts[client] = rows

    def take(self, clients, index):
        import torch

        if self.whole is None:
            self.whole = torch.cat([self.parts[client] for client in clients])
        return self.whole.index_select(0, index)

    def clear(self):
        self.__init__()


def memory(field: str) -> int:
    """Bytes of this process, from /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def measure(way: str, clients: int, directory: str | None) -> dict:
    """One round; the weights at its end are hashed, as both ways must train the same."""

    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))
    from fake import Fake

    from catchment.core.fleet import Fleet
    from catchment.core.ledger import Ledger
    from catchment.core.server import Server

    world = build_world(clients)
    server = Server(world, None if directory is None else Path(directory))
    if way == "held in memory":
        server.spool = Held
    ledger = Ledger()
    fleet = Fleet(Fake(clients, lambda request: upload(world, request)), world.method, ledger, seed=0)
    state = world.method.init(server)
    server.round = 1
    fleet.begin_round(1)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    start, began = memory("VmRSS"), time.process_time()
    world.method.round(server, state, fleet)
    peak, seconds = memory("VmHWM"), time.process_time() - began
    fleet.check_round()
    digest = hashlib.sha256()
    for tensor in state.model.state_dict().values():
        digest.update(tensor.contiguous().numpy().tobytes())
    return {
        "start": start,
        "peak": peak,
        "above_start": peak - start,
        "cpu_seconds": seconds,
        "uploaded": ledger.summary()["up"],
        "weights": digest.hexdigest()[:16],
    }


def in_fresh_process(way: str, chosen: argparse.Namespace) -> dict:
    call = f"spool.measure({way!r}, {chosen.clients}, {chosen.directory!r})"
    code = f"from catchment import process; process.set_up(); import json, spool; print(json.dumps({call}))"
    env = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parent),
        "SPOOL_CLIENTS": str(chosen.clients),
        "SPOOL_SAMPLES": str(chosen.samples),
    }
    done = subprocess.run([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of each client")
    parser.add_argument(
        "--directory", help="where the spool's file lies; the system's for temporary files if not given"
    )
    chosen = parser.parse_args()
    report: dict = {
        "clients": chosen.clients,
        "samples": chosen.samples,
        "features": [16, 32, 32],
        "server": "half(1,1,1)",
        "batch": 256,
        "ways": {way: in_fresh_process(way, chosen) for way in WAYS},
    }
    spooled, held = (report["ways"][way] for way in WAYS)
    if spooled["weights"] != held["weights"]:
        sys.exit(f"training differs: weights {spooled['weights']} and {held['weights']}")
    print(json.dumps(report, indent=1))
    if (chosen.clients, chosen.samples) == (CLIENTS, SAMPLES):
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
