"""Numbers and names in the form in which people read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MISSING = "\N{EN DASH}"  # where there is no number


class Unit(NamedTuple):
    """A unit and how many of the basic one it holds."""

    name: str
    size: float


BYTES = tuple(Unit(name, 1024.0**power) for power, name in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB")))
SECONDS = (Unit("ms", 1e-3), Unit("s", 1.0), Unit("min", 60.0), Unit("h", 3600.0), Unit("d", 86400.0))


def fitting(value: float, units: Sequence[Unit]) -> Unit:
    """The largest unit of which `value` holds at least one."""
    return next((unit for unit in reversed(units) if value >= unit.size), units[0])


def human_bytes(count: float) -> str:
    """`"1.50 KiB"`: three digits or so, in powers of 1024."""
    unit = fitting(count, BYTES)
    if unit is not BYTES[-1] and round(count / unit.size) == 1024:  # 1023.9 KiB would be shown as 1024
        unit = BYTES[BYTES.index(unit) + 1]
    if unit is BYTES[0]:
        return f"{count:.0f} B"
    value = count / unit.size
    return f"{value:.{_decimals(value)}f} {unit.name}"


def human_seconds(seconds: float) -> str:
    """`"420 ms"`, `"4.20 s"`, `"1 min 05 s"`, `"2 h 30 min"`, `"3 d 04 h"`."""
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.{_decimals(seconds)}f} s"
    for large, small, each in (("min", "s", 60), ("h", "min", 3600)):
        count = round(seconds * 60 / each)  # of the smaller unit
        if count < (3600 if each == 60 else 1440):
            return f"{count // 60} {large} {count % 60:02d} {small}"
    count = round(seconds / 3600)
    return f"{count // 24} d {count % 24:02d} h"


def percent(share: float | None) -> str:
    """`"54.52"` for 0.5452; the heading says that it is in percent."""
    return MISSING if share is None else f"{100 * share:.2f}"


def printable(text: str) -> str:
    """The text with control characters and the like replaced, for a page or a terminal."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)


def shortened(text: str, length: int) -> str:
    """The text, or its beginning and its end if it is longer than `length`."""
    if len(text) <= length:
        return text
    tail = 2 * (length - 1) // 3
    return f"{text[: length - 1 - tail]}…{text[-tail:]}"


def _decimals(value: float) -> int:
    """As many decimals as give about three digits."""
    return 2 if value < 9.995 else 1 if value < 99.95 else 0
