"""Random numbers that a model draws in training, as dropout does, where the server trains it.

PyTorch's layers draw from its global generator, which all threads share. On a client a whole request is served under a
derived seed; the server works while clients do, so that here each forward pass has a seed of its own.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch import nn

from catchment.randomness import derive, seeded_globals


class Draws:
    """Hooks of a module around its forward passes in training."""

    def __init__(self, module: nn.Module) -> None:
        self._seed = self._passes = 0
        self._within: AbstractContextManager[None] | None = None
        module.register_forward_pre_hook(self._before)
        module.register_forward_hook(self._after, always_call=True)

    def begin(self, seed: int) -> None:
        """Passes from now on draw from this seed."""
        self._seed, self._passes = seed, 0

    def _before(self, module: nn.Module, inputs: Any) -> None:
        if module.training:
            self._within = seeded_globals(derive(self._seed, self._passes))
            self._within.__enter__()
            self._passes += 1

    def _after(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if self._within is not None:
            self._within.__exit__(None, None, None)
            self._within = None
