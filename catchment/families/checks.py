"""Why a reply cannot be used, for `fleet.ask(..., accept=...)`: a check returns the reason, or nothing if it can.

What any reply of a payload class must look like is declared on its fields (`catchment.core.declarations`); here is what
depends on the question.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor


def rows(logits: Tensor, samples: int) -> str:
    """Predictions must be of all samples that were asked about."""
    return "" if len(logits) == samples else f"there are logits of {len(logits)} samples; {samples} are expected"


def finite(logits: Tensor, samples: str) -> str:
    """A model that came must give numbers."""
    return "" if bool(logits.isfinite().all()) else f"its model gives NaN or infinity on {samples}"


def names(tensors: Mapping[str, Tensor], expected: Iterable[str], what: str) -> str:
    """The tensors that were asked for must have come, and no others."""
    return "" if tensors.keys() == set(expected) else f"other tensors came than those of {what}"


def batches(last: bool, number: int, most: int) -> str:
    """A turn must be over when the client has sent as many batches as it can have."""
    return "" if last or number < most else f"batch {number} should be the last of its turn"
