"""One client's part in a federation: the process that a device runs."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from typing import Any

from catchment.device import RealDevice
from catchment.device.policy import Policy
from catchment.errors import RunError, UserError, needs


def join_federation(
    policy: Policy, *, once: bool, ask: Callable[[str], bool] | None, tell: Callable[[str], None]
) -> None:
    """Serve one client until the process is ended, or with `once` until a run is over.

    `ask` shows a person what a run would do and says whether they agree; None if there is nobody to ask.
    """
    for name in ("data", "modules", "root_certificate", "key", "federation"):
        path = getattr(policy, name)
        if path is not None and not path.exists():
            raise UserError(f"{name} is {path} in the policy; there is nothing there")
    os.umask(0o077)
    with needs("joining a federation", "device"):
        from catchment.flower.federation import environment

        os.environ |= {k: v for k, v in environment(policy.state / "flower").items() if k.startswith("FLWR_")}
        from catchment.flower.node import serve_node
        from catchment.flower.supernode import Refused
        from catchment.keys.keys import check_device_key
    if policy.key is not None:
        check_device_key(policy.key)
    _hold_to(policy.limits.bytes_of_memory)
    device = RealDevice(policy, ask, tell)
    device.start_anew()

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        serve_node(policy.server, device, policy.root_certificate, policy.key, once=once, tell=tell)
    except KeyboardInterrupt:
        tell(f"client {policy.client} left")
    except Refused as refused:
        raise RunError(f"client {policy.client} cannot join {policy.server}: {refused}") from None


def _hold_to(memory: float) -> None:
    """Let the system refuse this process more memory, where it can; what then fails is one request."""
    if os.name != "posix" or math.isinf(memory):
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = int(memory) if hard == resource.RLIM_INFINITY else min(int(memory), hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
