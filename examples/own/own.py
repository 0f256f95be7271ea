from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from catchment import Dataset, Method, Metrics, Payload, Weights, loss_function, on_client


def blobs(seed):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 4, 800)
    images = random.normal(size=(4, 1, 8, 8))[labels] + random.normal(size=(800, 1, 8, 8))
    return Dataset.of(images[:600], labels[:600], images[600:], labels[600:])


def net(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, classes))


@loss_function
def loss(outputs, labels):
    return cross_entropy(outputs, labels)


@dataclass(frozen=True)
class Model(Payload):
    weights: dict[str, Tensor]
    samples: int = 0


@dataclass
class State:
    weights: Weights


@dataclass(frozen=True)
class HalfSteps(Method[State]):
    step: float = 0.5

    def init(self, server):
        return State(server.first_weights())

    def round(self, server, state, fleet):
        mean = server.aggregator.running()
        for reply in fleet.ask(self.train, dict.fromkeys(fleet.cohort(), Model(state.weights)), in_order=True):
            mean.add(reply.body.weights, weight=reply.body.samples)
        if mean.weight:
            new = mean.value()
            state.weights = {name: w + self.step * (new[name] - w) for name, w in state.weights.items()}

    def evaluate(self, server, state, fleet):
        return Metrics(server.evaluate(server.client_model(0, state.weights)).accuracy)

    @on_client
    def train(self, client, request: Model) -> Model:
        model = client.model(request.weights)
        client.fit(loss, model, client.optimizer(model), client.batches())
        return Model(model.state_dict(), len(client.train))
