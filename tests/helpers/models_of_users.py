"""Models as a user would bring them."""

from dataclasses import dataclass, replace

import torch
from torch import nn

from catchment import Client, SplitModel, on_client
from catchment.methods.fedgkt import FedGKT, Feedback, Knowledge


def dropout(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, classes))


def tied(shape, classes):
    layer = nn.Linear(64, 64)
    return nn.Sequential(nn.Flatten(), layer, layer, nn.Linear(64, classes))


def flat_edge(shape, classes):
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU()), nn.Linear(32, classes))


def flat_half(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], 64), nn.ReLU(), nn.Linear(64, classes))


@dataclass(frozen=True)
class OneLies(FedGKT):
    """FedGKT in which client 2 sends features that are not numbers."""

    @on_client
    def local_training(self, client: Client, request: Feedback) -> Knowledge:
        upload = super().local_training(client, request)
        return replace(upload, features=upload.features * torch.nan) if client.id == 2 else upload
