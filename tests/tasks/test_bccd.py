"""YOLOX-nano learns a few images by heart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from catchment.data import batches, load
from catchment.learning.evaluation import evaluate
from catchment.learning.losses import task_loss
from catchment.learning.steps import fit
from catchment.models import build

ROOT = Path(os.environ.get("CATCHMENT_DATA", "nowhere"))


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "bccd").is_dir(), reason="needs the data set")
def test_yolox_nano_learns_eight_images_by_heart():
    pytest.importorskip("faster_coco_eval")
    data = load("bccd", None, train=8, test=1, seed=0, size=192)
    model = build("yolox_nano", data.shape, 3, seed=0).to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(200):
        if epoch == 160:
            optimizer.param_groups[0]["lr"] /= 10
        epoch_batches = batches(data.train, 4, normalise=data.normalise, seed=epoch, task=data.task, channels_last=True)
        fit(task_loss, model, optimizer, epoch_batches, criterion=data.task.loss)
    score = evaluate(model, data.train, data.normalise, task=data.task, classes=data.classes)
    assert score.more["AP50"] > 0.8
