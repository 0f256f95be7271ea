"""Features that clients sent: kept on the disk, dealt in batches; and the first layers that all clients begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from catchment.core.server import Server
from catchment.core.spool import Spool
from catchment.core.world import World
from catchment.data import Batch
from catchment.data.batching import batch_sizes
from catchment.errors import ModelError
from catchment.learning.prefetch import prefetched
from catchment.learning.training import Weights
from catchment.models import check_pair

View = Callable[[Sequence[int], Tensor, Tensor], Tensor]
"""Features of clients, of some of their rows, which have these numbers in the epoch."""


@dataclass
class FeatureStore:
    """Features on the disk and their labels, by client, a row per sample in the order of ids."""

    files: dict[str, Spool]  # H by client, for each shape of features
    ids: dict[int, Tensor] = field(default_factory=dict)  # [N_k], ascending
    labels: dict[int, Tensor] = field(default_factory=dict)  # y_k, [N_k]

    @staticmethod
    def of(server: Server) -> FeatureStore:
        """An empty store for the features of all clients."""
        shapes = (architecture.facts.features or () for architecture in server.client_architectures)
        return FeatureStore({_name(shape): server.spool() for shape in dict.fromkeys(shapes)})

    def refusal(self, world: World, client: int, ids: Tensor) -> str:
        """Why an upload cannot be kept, "" if it can: it must be of all samples of the client, in their order."""
        own = self.ids.get(client) if world.data.own else world.data.clients[client]
        if own is None:  # with data of its own, a client says in its first upload which samples it has
            return "" if bool((ids.diff() > 0).all()) else f"{len(ids)} ids came that are not ascending"
        return "" if torch.equal(ids, own) else f"{len(ids)} ids came that are not the {len(own)} of client {client}"

    def put(self, client: int, ids: Tensor, features: Tensor, labels: Tensor) -> None:
        """Keep an upload in place of the client's last one."""
        self.files[_name(features.shape[1:])].put(client, features)
        self.ids[client], self.labels[client] = ids, labels

    def take(self, clients: Sequence[int], rows: Tensor) -> Tensor:
        """Copies of features of clients that have one shape; rows are numbered one client after the other."""
        features = self.files[self._shape(clients[0])].take(clients, rows)
        return features.contiguous(memory_format=torch.channels_last) if features.ndim == 4 else features

    def epoch(
        self,
        clients: Sequence[int],
        others: Sequence[int] = (),
        *,
        size: int,
        shuffle: torch.Generator,
        replay: float = 0.0,
        again: torch.Generator | None = None,
        view: View | None = None,
    ) -> Iterator[Batch]:
        """Batches of all samples of `clients`, and of `replay` times as many that `others` sent before.

        A batch has one shape of features; its ids number the rows of all clients and others, one after the other.
        """
        everybody = [*clients, *others]
        sizes = [len(self.ids[k]) for k in everybody]
        rows = dict(zip(everybody, torch.arange(sum(sizes)).split_with_sizes(sizes)))
        labels = torch.cat([self.labels[k] for k in everybody])
        groups: dict[str, list[int]] = {}
        for k in everybody:
            groups.setdefault(self._shape(k), []).append(k)
        plan: list[tuple[list[int], Tensor, Tensor]] = []
        for group in groups.values():
            numbers = torch.cat([rows[k] for k in group])
            new = sum(len(rows[k]) for k in group if k in clients)
            old = torch.randperm(len(numbers) - new, generator=again)
            index = torch.cat([torch.arange(new), new + old[: round(replay * new)]])
            index = index[torch.randperm(len(index), generator=shuffle)]
            plan += [(group, part, numbers[part]) for part in index.split_with_sizes(batch_sizes(len(index), size))]
        if len(groups) > 1:
            plan = [plan[i] for i in torch.randperm(len(plan), generator=shuffle)]
        for group, part, at in plan:
            features = self.take(group, part) if view is None else view(group, part, at)
            yield Batch(features, labels[at], at)

    def clear(self) -> None:
        """Give the disk space back; ids and labels stay."""
        for file in self.files.values():
            file.clear()

    def _shape(self, client: int) -> str:
        return next(shape for shape, file in self.files.items() if client in file)


def _name(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """The same batches on a compute device, their ids where they are; each is read while the one before trains."""
    for features, labels, ids in prefetched(batches):
        yield Batch(features.to(device), labels.to(device), ids)


def check_half(world: World, method: str) -> None:
    """Refuse a world without a server half, or with one that some client's features do not fit."""
    if world.server_model is None:
        raise ModelError(f"{method} trains a server half on features; set models.server, such as resnet19")
    half = world.server_architecture
    for edge in dict.fromkeys(world.client_architectures):
        check_pair(edge.build(), half.build(), edge.shape, world.classes, edge.name, half.name)


# ---- first layers -----------------------------------------------------------------------------------------------


def extractor_of(weights: Weights) -> Weights:
    """The part of a model's weights that is its extractor's, by the names of the model."""
    return {name: tensor for name, tensor in weights.items() if name.startswith("extractor.")}


def first_weights(world: World, client: int, start: Weights | None, *, own: bool = False) -> Weights:
    """What a client begins with: a head of its own, the stem that all share or its `own`, and what the server sent."""
    return {**world.first_weights(client), **({} if own else shared_stem(world, client)), **(start or {})}


def shared_stem(world: World, client: int) -> Weights:
    """The first weights that extractors of one kind share, whatever the heads on them."""

    def kind(stem: Weights) -> dict[str, torch.Size]:
        return {name: tensor.shape for name, tensor in stem.items()}

    own = extractor_of(world.client_architecture(client).facts.initial)
    stems = (extractor_of(architecture.facts.initial) for architecture in world.client_architectures)
    return next(stem for stem in stems if kind(stem) == kind(own))
