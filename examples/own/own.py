from dataclasses import dataclass

import numpy as np
from torch import nn
from torch.nn.functional import cross_entropy

from catchment import Dataset, fit, on_client
from catchment.weights import GlobalModel, GlobalState, LocalModel, OneModel, mean_model


def blobs(seed):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 4, 800)
    images = random.normal(size=(4, 1, 8, 8))[labels] + random.normal(size=(800, 1, 8, 8))
    return Dataset.of(images[:600], labels[:600], images[600:], labels[600:])


def net(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, classes))


@dataclass(frozen=True)
class HalfSteps(OneModel):
    step: float = 0.5

    def init(self, server):
        return GlobalState(server.world.client_architecture(0).probe.initial)

    def round(self, server, state, fleet):
        bodies = dict.fromkeys(fleet.cohort(), GlobalModel(state.weights))
        replies = fleet.ask(self.train, bodies, in_order=True)
        mean = mean_model(server, replies, state.weights) or state.weights
        state.weights = {name: w + self.step * (mean[name] - w) for name, w in state.weights.items()}

    @on_client
    def train(self, client, request: GlobalModel) -> LocalModel:
        model = client.model(request.weights)
        loss = fit(client.optimizer(model), client.batches(), lambda b: cross_entropy(model(b.images), b.labels))
        return LocalModel(model.state_dict(), len(client.train), loss)
