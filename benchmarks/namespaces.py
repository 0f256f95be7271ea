"""FedGKT between hosts: every client in a network namespace of its own, over a slow and lossy line.

    sudo python benchmarks/namespaces.py [--delay 20] [--loss 0.01] [--rate 10] [--out FILE]

Each client's line to the server has a delay each way (ms), a share of lost packets and a rate (Mbit/s). The lines are
made of pairs of TUN devices with this process between them, as not every kernel has netem. Server and clients are
started by the commands of docs/flower.md, with TLS and keys. Needs root and Linux; leaves no namespace behind.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from catchment.device.policy import KINDS, Allow, Policy

HERE = Path(__file__).parent
CLIENTS = 2
CODECS = "features=int4+sparse+zstd"
EXPERIMENT = """
name = "namespaces"
rounds = 3
[data]
name = "cifar10"
clients = {clients}
train = 200
test = 200
[method]
name = "fedgkt"
distill = "server-to-edge"
[models]
client = "resnet8"
server = "half(1,1,1)"
[wire]
codecs = ["{codecs}"]
"""
TUNSETIFF, IFF_TUN, IFF_NO_PI, CLONE_NEWNET = 0x400454CA, 0x0001, 0x1000, 0x40000000
BUFFER = 100_000  # bytes that a line's router holds before it drops


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay", type=float, default=20.0)
    parser.add_argument("--loss", type=float, default=0.01)
    parser.add_argument("--rate", type=float, default=10.0)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "namespaces.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        hosts = ["server", *(f"client{k}" for k in range(CLIENTS))]
        names = {host: stack.enter_context(namespace(f"catchment-{host}")) for host in hosts}
        lines = [Line(names["server"], names[f"client{k}"], k, arguments) for k in range(CLIENTS)]
        for line in lines:
            threading.Thread(target=line.carry, daemon=True).start()
        ping = subprocess.run(
            ["ip", "netns", "exec", names["client0"], sys.executable, "-c", PING], capture_output=True, text=True
        )
        result, seconds = federate(Path(folder), names)
    measured = {
        "delay_ms": arguments.delay,
        "loss": arguments.loss,
        "rate_mbit": arguments.rate,
        "connect_ms": float(ping.stdout or "nan"),
        "clients": CLIENTS,
        "codecs": CODECS,
        "rounds": result["rounds"],
        "accuracy": result["accuracy"],
        "lost": result["lost"],
        "failed": result["failed"],
        "payload_bytes": result["bytes"],
        "bytes_on_the_lines": sum(line.carried for line in lines),
        "packets": sum(line.packets for line in lines),
        "packets_lost": sum(line.lost for line in lines),
        "seconds": seconds,
    }
    arguments.out.write_text(json.dumps(measured, indent=1) + "\n")
    print(json.dumps(measured, indent=1))


# Milliseconds until the server's host refuses a connection: one trip there and one back.
PING = """
import socket, time
began = time.perf_counter()
try: socket.create_connection(("10.77.0.1", 9), timeout=5)
except ConnectionRefusedError: print(1000 * (time.perf_counter() - began))
"""


def federate(folder: Path, names: dict[str, str]) -> tuple[dict, float]:
    """The run, by the commands of the docs."""
    (folder / "x.toml").write_text(EXPERIMENT.format(clients=CLIENTS, codecs=CODECS))
    catchment = [sys.executable, "-m", "catchment"]
    hosts = [word for k in range(CLIENTS) for word in ("--host", f"10.77.{k}.1")]
    subprocess.run([*catchment, "keys", "keys", "--clients", str(CLIENTS), *hosts], cwd=folder, check=True)

    def start(host: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (folder / f"{host}.log").open("wb") as log:
            command = ["ip", "netns", "exec", names[host], *catchment, *arguments]
            return subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)

    began = time.monotonic()
    server = start("server", "server", "x.toml", "--keys", "keys", "--port", "9092", "--out", "run")
    digest = folder / "run" / "flower" / "digest"
    while not digest.exists():
        time.sleep(0.1)
    clients = []
    for k in range(CLIENTS):
        Policy(
            f"10.77.{k}.1:9092", k, folder / f"state{k}", Path(os.environ["CATCHMENT_DATA"]),
            root_certificate=folder / "keys" / "ca.crt", key=folder / "keys" / f"client-{k}.key",
            federation=folder / "keys" / "federation.pub",
            allow=Allow(leaves=KINDS, experiments=(digest.read_text(),)),
        ).write(folder / f"client{k}.toml")  # fmt: skip
        clients.append(start(f"client{k}", "join", "--policy", f"client{k}.toml", "--once"))
    try:
        if server.wait() != 0:
            raise SystemExit((folder / "server.log").read_text())
    finally:
        for process in (server, *clients):
            process.terminate()
    return json.loads((folder / "run" / "result.json").read_text()), time.monotonic() - began


@contextlib.contextmanager
def namespace(name: str) -> Iterator[str]:
    """A network namespace with a loopback device."""
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "netns", "exec", name, "ip", "link", "set", "lo", "up"], check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False)


class Line:
    """A line between the server's host (10.77.K.1) and a client's (10.77.K.2)."""

    def __init__(self, server: str, client: str, number: int, settings: argparse.Namespace) -> None:
        self.ends = tun(server, f"line{number}", f"10.77.{number}.1/30"), tun(client, "line", f"10.77.{number}.2/30")
        self.delay = settings.delay / 1000
        self.loss = settings.loss
        self.rate = settings.rate * 1e6 / 8  # bytes a second
        self.carried = self.packets = self.lost = 0
        self.cut = False  # nothing gets through any more

    def carry(self) -> None:
        """Pass packets on, later, fewer and slower."""
        chance = random.Random(0)
        free = [0.0, 0.0]  # when the line is free again, each way
        waiting: list[tuple[float, int, int, bytes]] = []
        while True:
            pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
            ready, _, _ = select.select(self.ends, [], [], pause)
            for end in ready:
                packet = os.read(end, 65536)
                way = self.ends.index(end)
                self.packets += 1
                now = time.monotonic()
                start = max(now, free[way])
                if self.cut or chance.random() < self.loss or (start - now) * self.rate > BUFFER:
                    self.lost += 1
                    continue
                free[way] = start + len(packet) / self.rate
                heapq.heappush(waiting, (free[way] + self.delay, self.packets, 1 - way, packet))
                self.carried += len(packet)
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, way, packet = heapq.heappop(waiting)
                with contextlib.suppress(OSError):
                    os.write(self.ends[way], packet)


def tun(name: str, device: str, address: str) -> int:
    """A TUN device in a namespace; the descriptor works from any."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    away = os.open(f"/var/run/netns/{name}", os.O_RDONLY)
    try:
        if libc.setns(away, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        descriptor = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TUN | IFF_NO_PI))
    finally:
        libc.setns(home, CLONE_NEWNET)
        os.close(home)
        os.close(away)
    for words in (("addr", "add", address, "dev", device), ("link", "set", device, "up")):
        subprocess.run(["ip", "netns", "exec", name, "ip", *words], check=True)
    return descriptor


if __name__ == "__main__":
    main()
