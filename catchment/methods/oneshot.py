"""One-shot split learning, of no paper: split learning, or FedGKT, whose first layers never train.

All devices have the same first layers, random or pretrained (`models.weights`), and fixed. A device passes each of its
images through them once and sends the features with the labels: it trains nothing, and remembers nothing. The server
trains the rest of the model on them for as many rounds as it likes. No other view of an image will come, so the server
augments features: it takes those of the mirror image at random, and moves the maps.

Departures: none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from catchment.client.state import ClientState
from catchment.core.client import Client
from catchment.core.declarations import features, ids, labels
from catchment.core.fleet import Fleet
from catchment.core.intake import Reply
from catchment.core.method import Method, Metrics, on_client
from catchment.core.server import Server
from catchment.core.world import World
from catchment.data import Batch
from catchment.errors import ExperimentError
from catchment.exchange.payload import Payload
from catchment.families.features import FeatureStore, ahead, check_half, extractor_of, first_weights
from catchment.learning.losses import task_loss
from catchment.randomness import per_sample, torch_generator
from catchment.reading import Count, Whole
from catchment.tasks.pixels import shifted


@dataclass(frozen=True)
class Start(Payload):
    """What the first layers are, down, where they are not the random ones that all know."""

    weights: dict[str, Tensor] | None = None  # of `models.weights`


@dataclass(frozen=True)
class Features(Payload):
    """All that a device ever sends."""

    features: Annotated[Tensor, features("N_k")]  # H
    labels: Annotated[Tensor, labels("N_k")]  # y_k
    ids: Annotated[Tensor, ids("N_k")]  # ascending
    mirrored: Annotated[Tensor, features("N_k")] | None = None  # H of the mirror images


@dataclass
class State:
    """What the server remembers."""

    model: nn.Module  # f_s
    optimizer: torch.optim.Optimizer
    store: FeatureStore  # H, y_k
    mirrored: FeatureStore  # H of the mirror images


@dataclass(frozen=True)
class OneShot(Method[State]):
    """Features that are sent once."""

    models: ClassVar[tuple[str, ...]] = ("model",)
    moving_average: ClassVar[float] = 0.99
    takes_features: ClassVar[bool] = True
    server_epochs: Count = 1
    """Epochs per round."""
    mirror: bool = False
    """Features of mirror images go up too; per sample and epoch one of the two is taken."""
    shift: Whole = 0
    """Pixels by which the server moves maps at random, at most."""

    def check(self, world: World) -> None:
        """A server half that fits every client's features; maps that are larger than the shift."""
        check_half(world, "oneshot")
        for edge in world.client_architectures if self.shift else ():
            shape = edge.facts.features or ()
            if len(shape) != 3 or self.shift >= min(shape[1:]):
                raise ExperimentError(
                    f"shift is {self.shift}, and features of {edge.name} have the shape {list(shape)}; channels, "
                    "height and width are expected, and both of these larger"
                )

    def init(self, server: Server) -> State:
        """A fresh server model, and no features."""
        model = server.model()
        return State(model, server.optimizer(model), FeatureStore.of(server), FeatureStore.of(server))

    def round(self, server: Server, state: State, fleet: Fleet) -> None:
        """Ask who is new, then train on the features of all."""

        def accept(reply: Reply[Features]) -> str:
            if self.mirror is (reply.body.mirrored is None):
                return f"features of mirror images {'are missing' if self.mirror else 'came that nobody asked for'}"
            return state.store.refusal(server.world, reply.client, reply.body.ids)

        new = {k: self.start(server, k) for k in fleet.cohort() if k not in state.store.ids}
        for reply in fleet.ask(self.extract, new, accept=accept):
            self.keep(state, reply)
        if clients := sorted(state.store.ids):
            batches = ahead(self.epochs(server, state, clients), server.device)
            server.fit(task_loss, state.model.train(), state.optimizer, batches)

    def start(self, server: Server, client: int) -> Start:
        """What a client is told before its forward pass."""
        return Start(extractor_of(server.client_architecture(client).fitting) or None)

    def keep(self, state: State, reply: Reply[Features]) -> None:
        """Put an upload into the store."""
        h = reply.body
        state.store.put(reply.client, h.ids, h.features, h.labels)
        if h.mirrored is not None:
            state.mirrored.put(reply.client, h.ids, h.mirrored, h.labels)

    @on_client
    def extract(self, client: Client, request: Start) -> Features:
        """A forward pass of every image, and of its mirror image."""
        model = client.model(first_weights(client.world, client.id, request.weights))
        extractor, samples = model.eval().get_submodule("extractor"), client.train
        none = torch.empty(0, *(client.architecture.facts.features or ()))
        plain, mirrored = [none], [none]
        with torch.no_grad():
            for batch in client.batches(shuffle=False, augment=False):
                plain.append(extractor(batch.images).cpu())
                if self.mirror:
                    mirrored.append(extractor(batch.images.flip(3)).cpu())
        h = torch.cat(plain)
        return Features(h, samples.targets, samples.ids, torch.cat(mirrored) if self.mirror else None)

    def epochs(self, server: Server, state: State, clients: Sequence[int]) -> Iterator[Batch]:
        """All features, shuffled and augmented anew in every epoch."""
        size = server.settings.batch_size
        for epoch in range(self.server_epochs):
            seed = server.seed("augment", epoch, clients[0])

            def view(group: Sequence[int], rows: Tensor, at: Tensor, seed: int = seed) -> Tensor:
                return self.view(state, group, rows, per_sample(seed, at, 3))

            shuffle = torch_generator(server.seed("shuffle", epoch, clients[0]))
            yield from state.store.epoch(clients, size=size, shuffle=shuffle, view=view)

    def view(self, state: State, clients: Sequence[int], rows: Tensor, draws: Tensor) -> Tensor:
        """Features as cropping and flipping would be to images, by draws in [0, 1), `[B, 3]`."""
        flip, down, right = draws.unbind(1)
        maps = state.store.take(clients, rows)
        if self.mirror:
            flips = flip < 0.5
            maps[flips] = state.mirrored.take(clients, rows[flips])
        if not self.shift:
            return maps
        steps = [(draw * (2 * self.shift + 1)).long() - self.shift for draw in (down, right)]
        return shifted(maps, *steps).contiguous(memory_format=torch.channels_last)

    # ---- what comes out ----

    def evaluate(self, server: Server, state: State, fleet: Fleet) -> Metrics:
        """On the server, which knows the first layers of all: one model for each architecture."""
        kinds = len(server.client_architectures)  # dealt in turn
        scores = [server.evaluate(self.client_model(server, state, kind, {})) for kind in range(kinds)]
        if kinds == 1:
            return Metrics.of_model(scores[0])
        return Metrics.of_clients({k: scores[k % kinds].quality for k in range(server.clients)})

    def client_model(self, server: Server, state: State, client: int, kept: ClientState) -> nn.Module:
        """The client's first layers followed by the server's model."""
        weights = first_weights(server.world, client, self.start(server, client).weights)
        extractor = server.client_model(client, weights).get_submodule("extractor")
        return nn.Sequential(OrderedDict(extractor=extractor, server=state.model))

    def server_model(self, server: Server, state: State) -> nn.Module:
        """The server's half, which takes features."""
        return state.model
