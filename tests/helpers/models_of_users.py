"""Models as a user would bring them."""

from dataclasses import dataclass, replace

import torch
from torch import nn

from catchment import Client, Dataset, SplitModel, models, on_client
from catchment.data import Normalisation, Samples
from catchment.errors import RunError
from catchment.methods.fedgkt import FedGKT, Feedback, Knowledge
from catchment.methods.fedzkt import FedZKT, OnDeviceModel, Transferred


def dropout(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, classes))


def tied(shape, classes):
    layer = nn.Linear(64, 64)
    return nn.Sequential(nn.Flatten(), layer, layer, nn.Linear(64, classes))


def flat_edge(shape, classes):
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU()), nn.Linear(32, classes))


def flat_half(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], 64), nn.ReLU(), nn.Linear(64, classes))


def letters():
    """A data set beside the digits: as large images, other classes."""
    images = torch.arange(20 * 64).remainder(17).to(torch.uint8).reshape(20, 1, 8, 8)
    samples = Samples(images, torch.arange(20) % 3, torch.arange(20))
    return Dataset(samples, samples, ("a", "b", "c"), Normalisation(16, (0.5,), (0.5,)))


@dataclass(frozen=True)
class OneLies(FedGKT):
    """FedGKT in which client 2 sends features that are not numbers."""

    @on_client
    def local_training(self, client: Client, request: Feedback) -> Knowledge:
        upload = super().local_training(client, request)
        return replace(upload, features=upload.features * torch.nan) if client.id == 2 else upload


def flat_generator(shape, noise):
    return nn.Sequential(nn.Linear(noise, 64), nn.BatchNorm1d(64), nn.Unflatten(1, shape))


def small_generator(noise):
    return nn.Sequential(nn.Linear(noise, 16), nn.Unflatten(1, (1, 4, 4)))


def deaf_generator(shape):
    return nn.Sequential(nn.Linear(3, 64), nn.Unflatten(1, shape))


@dataclass(frozen=True)
class Zoo(FedZKT):
    """FedZKT in which only device 4 is as it should be."""

    @on_client
    def device_update(self, client: Client, request: Transferred) -> OnDeviceModel:
        upload = super().device_update(client, request)
        weights = dict(upload.weights)
        name, first = next(iter(weights.items()))
        if client.id == 0:
            weights = models.build("cnn", (1, 8, 8), 10, seed=0).state_dict()
        elif client.id == 1:
            weights[name] = first[:-1]
        elif client.id == 2:
            weights[name] = first * torch.nan
        elif client.id == 3 and client.round > 1:
            raise RunError("the device is gone")
        return replace(upload, weights=weights)
