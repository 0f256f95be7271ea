"""What a device sends, field by field, from the payload classes of a method: for pages, commands and reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from catchment.core.declarations import Kind, leaving
from catchment.core.expectations import Array, Expectations, Group, Known, Size
from catchment.core.method import Method
from catchment.core.world import World

SHOWS: Mapping[Kind, str] = {
    "images": "the samples themselves",
    "features": "the images, if the extractor is shallow",
    "labels": "the class of every sample, in clear",
    "ids": "which sample is which, from round to round",
    "logits": "what the client's model thinks of each sample",
    "weights": "what training changed, and through it something of the samples",
    "masks": "which weights training chose, and through it something of the samples",
    "counts": "how much data there is, or how far the exchange is",
    "metrics": "how well training goes, and which classes are mistaken for which",
    "unknown": "anything: the method does not declare it",
}


class Disclosed(NamedTuple):
    """A field that a device sends."""

    field: str
    kind: Kind
    shape: str
    when: str  # the handlers whose replies have it
    most: int | None  # bytes of one reply, before codecs; None: a scalar, or not known

    @property
    def shows(self) -> str:
        """What the receiver learns from it."""
        return SHOWS[self.kind]


def disclosed(method: type[Method[Any]], world: World | None = None, client: int = 0) -> list[Disclosed]:
    """All that clients of a method send; in a world, with the sizes that this client's data and model give."""
    rows: dict[tuple[str, Kind, str, int | None], list[str]] = {}
    for sent in leaving(method):
        shape, most = (sent.shape, None) if world is None else _sized(sent.handler, sent.field, world, client)
        rows.setdefault((sent.field, sent.kind, shape or sent.shape, most), []).append(sent.handler)
    return [Disclosed(field, kind, shape, ", ".join(when), most) for (field, kind, shape, most), when in rows.items()]


def _sized(handler: str, field: str, world: World, client: int) -> tuple[str, int | None]:
    """Shape in numbers and bytes of a field; nothing where they are not known."""
    expectations = Expectations.of(world.method, world)
    expected, known = expectations.expectation(handler, client), expectations.known(client)
    array, group = expected.arrays.get(field), expected.groups.get(field)
    if array is not None:
        sizes = ", ".join(_size(size, known) for size in array.sizes)
        countable = known.exact or all(size.most is not None for size in array.sizes)
        return f"{str(array.dtype).removeprefix('torch.')} [{sizes}]", array.bytes(known) if countable else None
    return ("", None) if group is None else _grouped(group, [expected.arrays[name] for name in group.names], known)


def _size(size: Size, known: Known) -> str:
    most = size.most if size.most is not None else known.samples if known.exact else "N_k"
    return str(most) if size.equal else f"{size.name} <= {most}"


def _grouped(group: Group, arrays: list[Array], known: Known) -> tuple[str, int]:
    def numbers(array: Array) -> int:
        return array.bytes(known) // array.dtype.itemsize

    total = sum(map(numbers, arrays))
    shape = f"{'at most ' if group.part else ''}{total:,} numbers in {len(arrays)} tensors"
    return shape, sum(array.bytes(known) for array in arrays)
