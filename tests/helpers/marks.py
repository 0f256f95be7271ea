"""Which of many cases are in the quick suite."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def quick(names: Collection[str], among: Iterable[str]) -> list[Any]:
    """Parameters for all of a test's cases, of which those that are not quick run in the slow suite."""
    return [name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in among]
