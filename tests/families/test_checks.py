"""Checks of replies: a reason for what cannot be used, nothing for what can."""

from __future__ import annotations

import pytest
import torch

from catchment.families import checks


def test_predictions_must_be_of_all_samples():
    assert checks.rows(torch.zeros(3, 2), 3) == ""
    assert checks.rows(torch.zeros(2, 2), 3) == "there are logits of 2 samples; 3 are expected"


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_logits_must_be_numbers(wrong):
    assert checks.finite(torch.tensor([1e30, -1e30]), "public samples") == ""
    assert checks.finite(torch.tensor([0.0, wrong]), "public samples") == (
        "its model gives NaN or infinity on public samples"
    )


@pytest.mark.parametrize("given", [["a"], ["a", "b", "c"], ["a", "c"]])
def test_the_tensors_that_were_asked_for_must_have_come(given):
    tensors = dict.fromkeys(given, torch.zeros(1))
    assert checks.names(dict.fromkeys("ab", torch.zeros(1)), ["b", "a"], "group 0") == ""
    assert checks.names(tensors, ["a", "b"], "group 0") == "other tensors came than those of group 0"


def test_a_turn_ends_with_its_last_batch():
    assert checks.batches(last=False, number=1, most=2) == ""
    assert checks.batches(last=True, number=2, most=2) == ""
    assert checks.batches(last=False, number=2, most=2) == "batch 2 should be the last of its turn"
