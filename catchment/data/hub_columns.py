"""Which columns of a table of the Hugging Face hub are its images and its labels."""

from __future__ import annotations

from collections.abc import Sequence

IMAGES = ("image", "img")
LABELS = ("label", "fine_label", "labels", "target", "class")  # the first of these that is there


def label_column(columns: Sequence[str], classes: Sequence[str]) -> str | None:
    """The column of labels, of those that may be it; `classes` are those that have names for their numbers."""
    return next((name for name in (*LABELS, *classes) if name in columns), None)
