"""Device profiles and injected faults of the simulated world. Times are virtual: nobody waits for them."""

from __future__ import annotations

from dataclasses import dataclass

from catchment.errors import ExperimentError


@dataclass(frozen=True)
class Device:
    """A kind of device. The built-in figures are round numbers of the right size, not measurements of a product."""

    compute: float = float("inf")  # multiply-accumulates a second in training
    up: float = float("inf")  # Mbit/s
    down: float = float("inf")  # Mbit/s
    latency: float = 0.0  # seconds, each way
    availability: float = 1.0  # share of the rounds in which it can be reached

    def __post_init__(self) -> None:
        if not (self.compute > 0 and self.up > 0 and self.down > 0 and self.latency >= 0):
            raise ExperimentError(f"a device needs compute, up and down above 0 and latency of at least 0: {self}")
        if not 0 <= self.availability <= 1:
            raise ExperimentError(f"a device's availability is a share from 0 to 1, not {self.availability}")

    def seconds(self, down_bytes: int, macs: int, up_bytes: int) -> float:
        """From sending a request to having its reply."""
        transfer = down_bytes * 8e-6 / self.down + up_bytes * 8e-6 / self.up
        return 2 * self.latency + transfer + macs / self.compute


DEVICES = {
    "ideal": Device(),
    "sensor": Device(compute=5e7, up=1, down=1, latency=0.1),
    "raspberry": Device(compute=2e9, up=20, down=50, latency=0.02),
    "phone": Device(compute=1e10, up=10, down=50, latency=0.05),
    "slow-phone": Device(compute=1e9, up=5, down=20, latency=0.05),
    "laptop": Device(compute=5e10, up=50, down=200, latency=0.01),
    "1mbit": Device(up=1, down=1),  # a link alone: time is that of transmission
    "10mbit": Device(up=10, down=10),
    "100mbit": Device(up=100, down=100),
}


@dataclass(frozen=True)
class Faults:
    """Chances, for every request, that something goes wrong. What happens is derived from the seed."""

    drop: float = 0.0  # the work is done, the reply is lost on the way
    crash: float = 0.0  # the device dies while working; its state stays as it was
    delay: float = 0.0  # the reply comes `delay_seconds` later
    delay_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("drop", "crash", "delay"):
            if not 0 <= getattr(self, name) <= 1:
                raise ExperimentError(f"faults.{name} is a chance from 0 to 1, not {getattr(self, name)}")
        if self.delay_seconds < 0:
            raise ExperimentError(f"faults.delay_seconds is {self.delay_seconds}; at least 0 is expected")
