"""Images with labels: loading them, dealing them to clients, and drawing batches from them."""

from __future__ import annotations

from catchment.data.batching import Batch, batches
from catchment.data.division import Division, describe, divide, own_division
from catchment.data.partition import OWN, PARTITIONS
from catchment.data.samples import Dataset, Form, Normalisation, Samples
from catchment.data.sources import STATISTICS, load

SOURCES = tuple(STATISTICS)  # the names that `load` knows

__all__ = [
    "OWN",
    "PARTITIONS",
    "SOURCES",
    "Batch",
    "Dataset",
    "Division",
    "Form",
    "Normalisation",
    "Samples",
    "batches",
    "describe",
    "divide",
    "load",
    "own_division",
]
