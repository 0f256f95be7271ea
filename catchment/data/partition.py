"""Ways to deal samples to clients.

A partition takes the labels `[N]`, the number of clients and a generator, and returns one array of positions
(0 to N - 1) per client, in a list or as `Parts`; no sample is dealt twice. Most of them only decide how many samples of
each class each client gets, a `[clients, classes]` table of counts, which `_dealt` then deals.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from catchment.data.parts import Parts
from catchment.errors import DataError, ExperimentError
from catchment.names import call_with_known, did_you_mean, resolve

Counts = NDArray[np.int64]
Rows = NDArray[np.int64]

DIRICHLET_TRIES = 1000
DIRICHLET_MINIMUM = 10  # samples per client, as in the FedGKT experiments
OWN = "own"
TABLES = resources.files("catchment.data") / "tables"


def deal(labels: Rows, clients: int, partition: Mapping[str, Any], generator: np.random.Generator) -> Parts[Rows]:
    """Deal samples by a partition's `name` and options; the name may be a user's "module:function".

    A user's function gets those of `labels`, `clients` and `generator` that it names, and its options.
    """
    options = dict(partition)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise ExperimentError(f"a partition needs a name; known: {', '.join(sorted(PARTITIONS))}")
    if clients < 1:
        raise ExperimentError(f"{clients} clients cannot be dealt anything; at least 1 is needed")
    if clients > len(labels) and name != OWN:
        raise DataError(
            f"{clients} clients cannot share {len(labels)} training samples; take fewer clients or more samples"
        )
    function = resolve("partition", name, PARTITIONS)
    given = {"labels": labels, "clients": clients, "generator": generator}
    _check_options(name, function, options, given)
    return _checked(name, call_with_known(function, **given, **options), clients, len(labels))


def iid(labels: Rows, clients: int, generator: np.random.Generator) -> Parts[Rows]:
    """Everything at random; sizes differ by at most 1."""
    sizes = np.full(clients, len(labels) // clients)
    sizes[: len(labels) % clients] += 1
    return Parts(generator.permutation(len(labels)), sizes)


def dirichlet(
    labels: Rows,
    clients: int,
    generator: np.random.Generator,
    *,
    alpha: float = 0.5,
    minimum: int | None = None,
) -> Parts[Rows]:
    """Each class in proportions from Dirichlet(alpha); every sample is dealt.

    Classes are dealt one after the other, and a client that already holds an equal share (N / clients) gets
    nothing of the next ones. All is drawn again until every client has `minimum` samples (10 unless given).

    Where there are fewer than 10 samples per client, drawing again cannot help: unless `minimum` is given, clients
    without samples then get one each from the largest ones.
    """
    if not (isinstance(alpha, int | float) and 0 < alpha < math.inf):
        raise ExperimentError(f"data.partition.alpha = {alpha!r} must be a number above 0")
    if not (minimum is None or (isinstance(minimum, int) and minimum >= 0)):
        raise ExperimentError(f"data.partition.minimum = {minimum!r} must be a whole number, 0 or more")
    available = np.bincount(labels)
    if minimum is None and clients * DIRICHLET_MINIMUM > len(labels):
        counts = _dirichlet_counts(available, clients, alpha, generator)
        return _dealt(labels, _without_empty_clients(counts), generator)
    minimum = DIRICHLET_MINIMUM if minimum is None else minimum
    for _ in range(DIRICHLET_TRIES):
        counts = _dirichlet_counts(available, clients, alpha, generator)
        if counts.sum(axis=1).min() >= minimum:
            return _dealt(labels, counts, generator)
    raise DataError(
        f"none of {DIRICHLET_TRIES} Dirichlet({alpha:g}) draws gave each of {clients} clients {minimum} of "
        f"{len(labels)} samples; raise data.partition.alpha, lower data.partition.minimum, or take fewer clients"
    )


def classes_per_client(labels: Rows, clients: int, generator: np.random.Generator, *, classes: int = 2) -> Parts[Rows]:
    """`classes` classes per client; a class is shared equally by its holders.

    Each client takes the classes with the fewest holders so far, ties at random, so that every class has a
    holder if clients * classes allow it.
    """
    available = np.bincount(labels)
    present = np.flatnonzero(available)
    if not (isinstance(classes, int) and 1 <= classes <= len(present)):
        raise ExperimentError(
            f"data.partition.classes = {classes!r} must be a whole number from 1 to {len(present)}, "
            "the classes there are"
        )
    holds = np.zeros((clients, len(present)), dtype=np.int64)
    holders = np.zeros(len(present), dtype=np.int64)
    for own in holds:
        chosen = np.lexsort((generator.random(len(present)), holders))[:classes]
        own[chosen] = 1
        holders[chosen] += 1
    for label, samples, sharers in zip(present, available[present], holders):
        if samples < sharers:
            raise DataError(
                f"class {label} has {samples} samples for the {sharers} clients that hold it; "
                "take fewer clients, fewer data.partition.classes, or more samples"
            )
    share, rest = np.divmod(available[present], np.maximum(holders, 1))
    counts = np.zeros((clients, len(available)), dtype=np.int64)
    counts[:, present] = holds * (share + (holds.cumsum(axis=0) <= rest))  # the first holders take the rest
    return _dealt(labels, counts, generator)


def main_class(
    labels: Rows,
    clients: int,
    generator: np.random.Generator,
    *,
    share: float = 0.8,
    classes: int = 1,
) -> Parts[Rows]:
    """Clients of equal size: `share` of it from `classes` main classes, the rest equally from the others.

    Main classes are dealt in turn: client 0 has the first, client 1 the next, and so on, cyclically. Clients are as
    large as the scarcest class allows, so samples may be left over.
    """
    if not (isinstance(share, int | float) and 0 < share <= 1):
        raise ExperimentError(f"data.partition.share = {share!r} must be above 0 and at most 1")
    available = np.bincount(labels)
    present = np.flatnonzero(available)
    if not (isinstance(classes, int) and 1 <= classes < len(present)):
        raise ExperimentError(
            f"data.partition.classes = {classes!r} must be a whole number from 1 to {len(present) - 1}, "
            "one less than the classes there are"
        )
    starts = np.arange(clients)[:, None] * classes
    turns = starts // len(present)
    ring = (starts + np.arange(len(present))) % len(present)  # [clients, present]: main classes first, then the others

    def counts_for(size: int) -> Counts:
        main = math.floor(share * size + 0.5)
        counts = np.zeros((clients, len(present)), dtype=np.int64)
        parts = _spread(main, classes, turns), _spread(size - main, len(present) - classes, turns)
        np.put_along_axis(counts, ring, np.hstack(parts), axis=1)
        return counts

    def is_too_large(size: int) -> bool:
        return bool((counts_for(size).sum(axis=0) > available[present]).any())

    size = bisect_right(range(1, len(labels) // clients + 1), False, key=is_too_large)
    if size == 0:
        raise DataError(
            f"{len(labels)} samples are too few for {clients} clients with main classes, as the scarcest "
            f"class has {available[present].min()}; take fewer clients or more samples"
        )
    counts = np.zeros((clients, len(available)), dtype=np.int64)
    counts[:, present] = counts_for(size)
    return _dealt(labels, counts, generator)


def table(
    labels: Rows,
    clients: int,
    generator: np.random.Generator,
    *,
    counts: Sequence[Sequence[int]] | None = None,
    file: str | None = None,
    scale: bool = False,
) -> Parts[Rows]:
    """Exactly the samples that a table says: one row per client, one column per class.

    The table is `counts`, or the CSV `file`: a path, or the name of a table that comes with Catchment. With
    `scale`, a table that asks for more than there is shrinks by one factor, rounded by largest remainders.
    """
    if (counts is None) == (file is None):
        raise ExperimentError("partition table needs one of data.partition.counts and data.partition.file")
    wanted = _table("in data.partition.counts", counts) if counts is not None else _read_table(str(file))
    if len(wanted) != clients:
        raise ExperimentError(f"the partition table has {len(wanted)} rows for {clients} clients")
    available = np.bincount(labels, minlength=wanted.shape[1])
    if len(available) > wanted.shape[1]:
        raise DataError(
            f"the partition table has {wanted.shape[1]} columns, but labels go up to {len(available) - 1}; "
            "it needs one column per class"
        )
    needed = wanted.sum(axis=0)
    short = np.flatnonzero(needed > available)
    if len(short) and not scale:
        raise DataError(
            f"the partition table needs {needed[short[0]]} samples of class {short[0]}, but there are "
            f"{available[short[0]]}; load more samples, or shrink the table with data.partition.scale = true"
        )
    if len(short):
        scarcest = short[np.argmin(available[short] / needed[short])]
        wanted = _scaled(wanted, int(available[scarcest]), int(needed[scarcest]))
    return _dealt(labels, wanted, generator)


def own(clients: int) -> Parts[Rows]:
    """Nothing: every client brings its own samples."""
    return Parts(np.empty(0, dtype=np.int64), np.zeros(clients, dtype=np.int64))


PARTITIONS: dict[str, Callable[..., Parts[Rows]]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "classes_per_client": classes_per_client,
    "main_class": main_class,
    "table": table,
    OWN: own,
}


def _check_options(
    name: str, function: Callable[..., Any], options: Mapping[str, Any], given: Mapping[str, Any]
) -> None:
    """Refuse options that the partition does not have."""
    parameters = signature(function).parameters.values()
    known = {p.name for p in parameters if p.kind is not Parameter.VAR_KEYWORD} - given.keys()
    takes_any = any(p.kind is Parameter.VAR_KEYWORD for p in parameters)
    for option in options:
        if option in given or not (takes_any or option in known):
            raise ExperimentError(f'partition "{name}" has no option "{option}"; {did_you_mean(option, known)}')


def _checked(name: str, parts: Parts[Rows] | Sequence[Any], clients: int, samples: int) -> Parts[Rows]:
    """What a partition returned, sorted, if every client is there and no sample is dealt twice."""
    if len(parts) != clients:
        raise DataError(f'partition "{name}" returned {len(parts)} parts for {clients} clients')
    if not isinstance(parts, Parts):
        arrays = [np.asarray(part) for part in parts]
        for k, part in enumerate(arrays):
            if part.ndim != 1 or (len(part) and part.dtype.kind not in "iu"):
                raise DataError(
                    f'partition "{name}" gave client {k} no list of whole numbers but {part.dtype} {part.shape}'
                )
        parts = Parts.of(arrays)
    positions = parts.whole.astype(np.int64, copy=False)
    if len(positions) and not (positions.min() >= 0 and positions.max() < samples):
        raise DataError(
            f'partition "{name}" dealt positions {positions.min()} to {positions.max()}, '
            f"but there are {samples} samples, numbered from 0"
        )
    times = np.bincount(positions, minlength=1)
    if times.max() > 1:
        raise DataError(f'partition "{name}" dealt sample {times.argmax()} {times.max()} times')
    owner = np.repeat(np.arange(clients), parts.sizes)
    return Parts(positions[np.lexsort((positions, owner))], parts.sizes)


def _dealt(labels: Rows, counts: Counts, generator: np.random.Generator) -> Parts[Rows]:
    """Random samples as a table says; `counts` is `[clients, classes]` and asks for no more than there is."""
    clients = len(counts)
    owner = np.full(len(labels), -1)  # of each sample; -1: nobody
    for label, wanted in enumerate(counts.T):
        rows = generator.permutation(np.flatnonzero(labels == label))
        owner[rows[: wanted.sum()]] = np.repeat(np.arange(clients), wanted)
    by_owner = np.argsort(owner, kind="stable")
    sizes = counts.sum(axis=1)
    return Parts(by_owner[len(labels) - sizes.sum() :], sizes)


def _dirichlet_counts(available: Counts, clients: int, alpha: float, generator: np.random.Generator) -> Counts:
    """One draw: class by class, clients that hold an equal share already are left out."""
    counts = np.zeros((clients, len(available)), dtype=np.int64)
    sizes = np.zeros(clients, dtype=np.int64)
    for label in np.flatnonzero(available):
        has_room = sizes * clients < available.sum()
        shares = generator.dirichlet(np.full(clients, alpha)) * has_room
        shares = shares if shares.sum() > 0 else has_room.astype(float)  # the whole draw went to clients without room
        ends = shares.cumsum()
        counts[:, label] = np.diff(np.floor(ends / ends[-1] * available[label]).astype(np.int64), prepend=0)
        sizes += counts[:, label]
    return counts


def _without_empty_clients(counts: Counts) -> Counts:
    """Every client without samples takes one of the largest client's most frequent class."""
    counts, sizes = counts.copy(), counts.sum(axis=1)
    largest = [(-size, client) for client, size in enumerate(sizes.tolist()) if size > 1]
    heapq.heapify(largest)
    for client in np.flatnonzero(sizes == 0):
        size, giver = largest[0]
        label = counts[giver].argmax()
        counts[giver, label] -= 1
        counts[client, label] += 1
        heapq.heapreplace(largest, (size + 1, giver))
    return counts


def _spread(total: int, ways: int, turns: Counts) -> Counts:
    """`total` over some ways as equally as possible, `[clients, ways]`; the remainder shifts with each turn."""
    share, rest = divmod(total, ways)
    return share + ((np.arange(ways) - turns * rest) % ways < rest)


def _scaled(counts: Counts, numerator: int, denominator: int) -> Counts:
    """Counts times a fraction; within a class the largest remainders are rounded up until its total fits."""
    scaled, remainders = np.divmod(counts * numerator, denominator)
    totals = counts.sum(axis=0) * numerator // denominator
    for label, missing in enumerate(totals - scaled.sum(axis=0)):
        scaled[np.argsort(-remainders[:, label], kind="stable")[:missing], label] += 1
    return scaled


def _read_table(name: str) -> Counts:
    shipped = {entry.name.removesuffix(".csv"): entry for entry in TABLES.iterdir()}
    source = shipped.get(name, Path(name).expanduser())
    try:
        lines = source.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"the partition table {name} cannot be read ({error}); give the path of a CSV file or one of: "
            f"{', '.join(sorted(shipped))}"
        ) from error
    rows = [line.split(",") for line in lines if line.strip() and not line.startswith("#")]
    try:
        return _table(name, [[int(cell) for cell in row] for row in rows])
    except ValueError as error:
        raise DataError(f"the partition table {name} must hold whole numbers separated by commas: {error}") from error


def _table(name: str, rows: Any) -> Counts:
    is_table = isinstance(rows, list) and all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows)
    if not (rows and is_table and all(isinstance(cell, int) and cell >= 0 for row in rows for cell in row)):
        raise DataError(
            f"the partition table {name} must have a row per client and a column per class, all rows of one length, "
            "of whole numbers, 0 or more"
        )
    return np.array(rows, dtype=np.int64)
