"""Parts of one array."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from catchment.data.parts import Parts


def test_parts_lie_side_by_side_and_share_memory():
    parts = Parts(np.arange(6), np.array([2, 0, 3, 1]))
    assert [part.tolist() for part in parts] == [[0, 1], [], [2, 3, 4], [5]]
    assert (len(parts), parts[-1].tolist(), parts.sizes.tolist()) == (4, [5], [2, 0, 3, 1])
    assert np.shares_memory(parts[2], parts.whole)
    with pytest.raises(IndexError):
        parts[4]


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_separate_parts_are_put_together(make):
    parts = Parts.of([make([4, 2]), make([1]), make([7, 7, 0])])
    assert parts.whole.tolist() == [4, 2, 1, 7, 7, 0]
    assert [part.tolist() for part in parts] == [[4, 2], [1], [7, 7, 0]]
    assert type(parts[0]) is type(make([0]))
