"""Extractors that clients share at first and nothing else: random, or trained on public data; and frozen ones."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from catchment.core.client import Client
from catchment.core.server import Server
from catchment.core.versions import ClientState
from catchment.core.world import World
from catchment.errors import ExperimentError
from catchment.learning.training import Weights, copy_weights, fit, load_weights, tensors_of


def extractor_of(weights: Weights) -> Weights:
    """The part of a model's weights that is its extractor's, by the names of the model."""
    return {name: tensor for name, tensor in weights.items() if name.startswith("extractor.")}


def first_weights(world: World, client: int, start: Weights | None, own: bool) -> Weights:
    """What a client begins with: a head of its own, on its own stem or the one that all share, and what was sent."""
    return {**world.first_weights(client), **({} if own else random_stem(world, client)), **(start or {})}


def begin(client: Client, start: Weights | None, own: bool) -> None:
    """Give a client that has not begun its first weights."""
    if "model" not in client.state:
        client.state = {**client.state, "model": first_weights(client.world, client.id, start, own)}


def random_stem(world: World, client: int) -> Weights:
    """The first weights that extractors of one kind share, whatever the heads on them."""

    def kind(stem: Weights) -> dict[str, torch.Size]:
        return {name: tensor.shape for name, tensor in stem.items()}

    own = extractor_of(world.client_architecture(client).facts.initial)
    stems = (extractor_of(architecture.facts.initial) for architecture in world.client_architectures)
    return next(stem for stem in stems if kind(stem) == kind(own))


def check_stem(world: World, own: bool) -> None:
    """Refuse a world in which no stem can be trained that fits all clients."""
    if own:
        raise ExperimentError("stem_epochs trains one stem for all, and with own_stems everybody has another one")
    world.need_public_labels("stem_epochs trains the stem on public samples and their labels")
    stem = extractor_of(world.client_architectures[0].facts.initial)
    for edge in dict.fromkeys(world.client_architectures):
        load_weights(extractor_of(tensors_of(edge.build())), stem, f"the extractor of {edge.name}")


def trained_stem(server: Server, epochs: int) -> Weights:
    """The extractor that all clients begin with, after some epochs on public data."""
    model = server.build(server.world.client_architectures[0])
    settings = server.world.client_optimizer
    assert server.public is not None  # checked before the run
    public = server.batches(server.public, settings.batch_size, epochs=epochs)
    fit(settings.build(model.parameters()), public, lambda batch: F.cross_entropy(model(batch.images), batch.labels))
    return {name: tensor.cpu() for name, tensor in extractor_of(copy_weights(model)).items()}


# ---- frozen extractors ------------------------------------------------------------------------------------------


def with_frozen(state: ClientState) -> ClientState:
    """A client's state in which the extractor of its model, as it is now, is kept aside for good."""
    return {**state, "extractor": extractor_of(state["model"])}


def extractor_in_use(model: nn.Module, state: ClientState) -> nn.Module:
    """What a client's features come from: the extractor that it keeps aside, or else that of its model."""
    extractor = model.get_submodule("extractor")
    if "extractor" not in state:
        return extractor
    frozen = copy.deepcopy(extractor)
    weights = {name.removeprefix("extractor."): tensor for name, tensor in state["extractor"].items()}
    load_weights(tensors_of(frozen), weights, "the frozen extractor")
    return frozen


def only_head(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """The forward pass of a model whose head alone trains: neither weights nor statistics of its extractor move."""
    model.eval()
    extractor, classifier = model.get_submodule("extractor"), model.get_submodule("classifier").train()

    def logits(images: Tensor) -> Tensor:
        with torch.no_grad():
            features = extractor(images)
        found: Tensor = classifier(features)
        return found

    return logits
