"""A device's process: it keeps PyTorch and the model, and asks the server for messages.

A server that is away, was restarted, cannot be reached or does not admit this device is tried again, with growing
pauses. The process ends only if the server cannot be trusted, or speaks another protocol.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from catchment.device import RealDevice
from catchment.flower.messages import reply_to
from catchment.flower.supernode import LONGEST_PAUSE, Away, Connection, FleetClient, NotAdmitted
from catchment.keys.keys import read_private
from catchment.process import return_freed_memory

LASTING = 30.0  # seconds after which a connection was a good one


def serve_node(
    address: str,
    device: RealDevice,
    root_certificate: Path | None,
    key: Path | None,
    *,
    once: bool,
    tell: Callable[[str], None],
) -> None:
    """Answer messages until the process is interrupted, or with `once` until a run is over."""
    private = ec.generate_private_key(ec.SECP384R1()) if key is None else read_private(key)
    certificate = None if root_certificate is None else root_certificate.read_bytes()
    pause = 0.0  # seconds until the next try, while the server is away
    told = ""
    with FleetClient(address, certificate, private) as server:
        while True:
            began = time.monotonic()
            try:
                with server.connected() as connection:
                    tell(f"client {device.client} is connected to {address} as node {connection.node.node_id}")
                    return _serve(connection, device, once, tell)
            except Away as why:
                if time.monotonic() - began > LASTING:
                    pause, told = 0.0, ""
                until = "it is" if isinstance(why, NotAdmitted) else "it is back"
                if told != (said := f"{address} is away ({why}); trying again until {until}"):
                    tell(said)
                    told = said
                pause = min(LONGEST_PAUSE, 2 * pause or 0.1)
                time.sleep(pause)


def _serve(connection: Connection, device: RealDevice, once: bool, tell: Callable[[str], None]) -> None:
    while True:
        if (message := connection.receive()) is None:
            continue
        began = time.monotonic()
        try:
            kind, reply = reply_to(message, device.answer)
        except Exception as error:  # its envelope comes from a server that may send anything
            raise Away(f"it sends what cannot be answered: {type(error).__name__}") from None
        del message
        connection.send(reply)
        del reply
        return_freed_memory()  # a device may need it for something else until the next message
        tell(f"{kind} answered in {time.monotonic() - began:.2f} s")
        if kind == "bye" and once:
            return
