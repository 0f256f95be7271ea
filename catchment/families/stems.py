"""The stem that extractors begin with, where clients share it and nothing else: random, or trained on public data."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from catchment.core.server import Server
from catchment.core.world import World
from catchment.learning.training import Weights, copy_weights, fit


def extractor_of(weights: Weights) -> Weights:
    """The part of a model's weights that is its extractor's, by the names of the model."""
    return {name: tensor for name, tensor in weights.items() if name.startswith("extractor.")}


def first_weights(world: World, client: int, start: Weights | None) -> Weights:
    """What a client begins with: a head of its own on the stem that all share, and over both what the server sent."""
    return {**world.first_weights(client), **random_stem(world, client), **(start or {})}


def random_stem(world: World, client: int) -> Weights:
    """The first weights that extractors of one kind share, whatever the heads on them."""

    def kind(stem: Weights) -> dict[str, torch.Size]:
        return {name: tensor.shape for name, tensor in stem.items()}

    own = extractor_of(world.client_architecture(client).facts.initial)
    stems = (extractor_of(architecture.facts.initial) for architecture in world.client_architectures)
    return next(stem for stem in stems if kind(stem) == kind(own))


def trained_stem(server: Server, epochs: int) -> Weights:
    """The extractor that all clients begin with, after some epochs on public data."""
    model = server.world.client_architectures[0].build()
    settings = server.world.client_optimizer
    assert server.public is not None  # checked before the run
    public = server.batches(server.public, settings.batch_size, epochs=epochs)
    fit(settings.build(model.parameters()), public, lambda batch: F.cross_entropy(model(batch.images), batch.labels))
    return {name: tensor.cpu() for name, tensor in extractor_of(copy_weights(model)).items()}
