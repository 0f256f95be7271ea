"""What a page is made of: sections of cards, tables, notes and figures, for the template `page.html`."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from catchment.report.tables import Column


@dataclass(frozen=True)
class Card:
    """A number with its name."""

    name: str
    value: str
    note: str = ""
    warning: str = ""


@dataclass(frozen=True)
class Cards:
    """Numbers side by side."""

    kind: ClassVar = "cards"
    cards: Sequence[Card]
    wide: bool = False


@dataclass(frozen=True)
class Table:
    """Columns of equal length."""

    kind: ClassVar = "table"
    columns: Sequence[Column]


@dataclass(frozen=True)
class Note:
    """A sentence in small print."""

    kind: ClassVar = "note"
    text: str


@dataclass(frozen=True)
class Alert:
    """A sentence that should be seen."""

    kind: ClassVar = "alert"
    text: str


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    kind: ClassVar = "heading"
    text: str


@dataclass(frozen=True)
class Graph:
    """A figure as SVG."""

    svg: str
    caption: str


@dataclass(frozen=True)
class Picture:
    """A PNG file."""

    svg: ClassVar = ""
    image: bytes
    name: str
    caption: str

    @property
    def source(self) -> str:
        """The file as a data URI."""
        return f"data:image/png;base64,{b64encode(self.image).decode()}"


@dataclass(frozen=True)
class Figures:
    """Graphs or pictures side by side."""

    kind: ClassVar = "figures"
    figures: Sequence[Graph | Picture]


@dataclass(frozen=True)
class File:
    """A text that is shown on demand."""

    kind: ClassVar = "file"
    label: str
    text: str


@dataclass(frozen=True)
class Folded:
    """Figures that are shown on demand."""

    kind: ClassVar = "folded"
    label: str
    part: Figures


Part = Cards | Table | Note | Alert | Heading | Figures | File | Folded


@dataclass(frozen=True)
class Section:
    """A part of the page with a title."""

    title: str
    parts: Sequence[Part]
