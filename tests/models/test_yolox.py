"""benchmarks/yolox.py: the detector whose bytes Fed-KGF's Table 4 counts."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

FILE = Path(__file__).parents[2] / "benchmarks" / "yolox.py"


def test_it_has_the_size_of_yolox_s_and_every_weight_is_trained():
    spec = importlib.util.spec_from_file_location("yolox", FILE)
    yolox = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(yolox)
    model = yolox.s(10)
    assert sum(weight.numel() for weight in model.parameters()) == 8_968_255
    scores = model(torch.rand(2, 3, 32, 32))
    assert scores.shape == (2, 10)
    scores.square().sum().backward()
    assert all(bool(weight.grad.abs().sum() > 0) for weight in model.parameters())
