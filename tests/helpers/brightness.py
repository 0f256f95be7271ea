"""A task of a user's own, in one file: how bright an image is. With its data set and its model."""

from __future__ import annotations

import torch
from torch import nn

from catchment import Dataset, Normalisation, Samples
from catchment.tasks import Label, Score, Task


class Regression(Task):
    name = "regression"

    def label(self, classes):
        return Label((), torch.float32, 0, 1)

    def refuses_model(self, outputs, classes):
        return "" if outputs == (2, 1) else f"outputs have shape {list(outputs)}, expected [N, 1]"

    def main_classes(self, labels, classes):
        return torch.zeros(len(labels), dtype=torch.int64)

    def loss(self, outputs, labels):
        return (outputs[:, 0] - labels).square().mean()

    def score(self, results, classes):
        errors = torch.cat([outputs[:, 0] - labels for outputs, labels in results])
        near = errors.abs() < 0.05
        return Score(
            near.float().mean().item(), errors.square().mean().item(), len(errors), {"worst": errors.max().item()}
        )


def images():
    generator = torch.Generator().manual_seed(0)
    grey = torch.rand(60, 1, 1, 1, generator=generator)
    noise = torch.randn(60, 1, 8, 8, generator=generator) / 10
    pixels = ((grey + noise).clamp(0, 1) * 255).round().byte()
    parts = [Samples(pixels, grey.flatten(), rows) for rows in torch.arange(60).split([40, 20])]
    return Dataset(*parts, ("brightness",), Normalisation(255, (0.5,), (0.5,)), task=Regression())


def model(channels):
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1)
    )


def three(channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
