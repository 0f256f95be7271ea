"""Multiply-accumulates of a model, by PyTorch's own FLOP counter."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def macs(module: nn.Module, shape: Sequence[int]) -> int:
    """Multiply-accumulates of one forward pass for one sample of this shape."""
    training = module.training
    module.eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(torch.zeros(1, *shape, device=next(module.parameters(), torch.empty(0)).device))
    module.train(training)
    return int(counter.get_total_flops()) // 2  # the counter books a multiply and an add as two
