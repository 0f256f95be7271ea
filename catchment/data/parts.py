"""Parts of one array, such as the rows of each client: a million clients are two arrays, not a million objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

T = TypeVar("T", NDArray[np.int64], Tensor)


class Parts(Generic[T]):
    """Neighbouring parts of one array or tensor; each is a view of it."""

    def __init__(self, whole: T, sizes: NDArray[np.int64]) -> None:
        self.whole: T = whole
        self.sizes = sizes  # of each part
        self._ends = sizes.cumsum()

    @staticmethod
    def of(parts: Sequence[Any]) -> Parts[Any]:
        """Separate arrays, or separate tensors, put together."""
        join: Any = torch.cat if isinstance(parts[0], Tensor) else np.concatenate
        return Parts(join(tuple(parts)), np.fromiter(map(len, parts), dtype=np.int64, count=len(parts)))

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, number: int) -> T:
        end = int(self._ends[number])
        return self.whole[end - int(self.sizes[number]) : end]

    def __iter__(self) -> Iterator[T]:
        return map(self.__getitem__, range(len(self)))
