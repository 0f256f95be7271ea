"""Simulated devices: how fast they compute and transfer, in virtual time, and what goes wrong with them."""

from __future__ import annotations

from dataclasses import dataclass

from catchment.reading import AnyShare, Chance, NonNegative, Positive


@dataclass(frozen=True)
class DeviceProfile:
    """A kind of device. The built-in figures are round numbers of the right size, not measurements of a product."""

    compute: Positive = float("inf")
    """Multiply-accumulates per second in training."""
    up: Positive = float("inf")
    """Mbit/s from the device to the server."""
    down: Positive = float("inf")
    """Mbit/s from the server to the device."""
    latency: NonNegative = 0.0
    """Seconds each way."""
    availability: AnyShare = 1.0
    """The share of the rounds in which the device can be reached."""
    memory: Positive | None = None
    """MiB that training may take; `catchment plan` compares."""

    def seconds(self, down_bytes: int, macs: int, up_bytes: int) -> float:
        """Seconds from sending a request to receiving its reply."""
        transfer = down_bytes * 8e-6 / self.down + up_bytes * 8e-6 / self.up
        return 2 * self.latency + transfer + macs / self.compute


PROFILES = {
    "ideal": DeviceProfile(),
    "sensor": DeviceProfile(compute=5e7, up=1, down=1, latency=0.1, memory=64),
    "raspberry": DeviceProfile(compute=2e9, up=20, down=50, latency=0.02, memory=1024),
    "phone": DeviceProfile(compute=1e10, up=10, down=50, latency=0.05, memory=2048),
    "slow-phone": DeviceProfile(compute=1e9, up=5, down=20, latency=0.05, memory=512),
    "laptop": DeviceProfile(compute=5e10, up=50, down=200, latency=0.01, memory=8192),
    "1mbit": DeviceProfile(up=1, down=1),  # a link alone: only transfer takes time
    "10mbit": DeviceProfile(up=10, down=10),
    "100mbit": DeviceProfile(up=100, down=100),
}


@dataclass(frozen=True)
class Faults:
    """`[faults]`: the chance that something goes wrong with a request. What happens is derived from the seed."""

    drop: Chance = 0.0
    """The device does the work, and the reply is lost on the way."""
    crash: Chance = 0.0
    """The device dies while it works; its state stays as it was."""
    delay: Chance = 0.0
    """The reply comes `delay_seconds` later."""
    delay_seconds: NonNegative = 60.0
    """Seconds by which a delayed reply is late."""
