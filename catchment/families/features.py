"""What clients know of their samples, where the server trains on features: how it is made, sent, kept and dealt."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn

from catchment.core.client import Client
from catchment.core.declarations import Turn, features, ids, labels, logits
from catchment.core.server import Server
from catchment.core.spool import Spool
from catchment.core.world import World
from catchment.data import Batch
from catchment.data.batching import batch_sizes
from catchment.errors import ExperimentError
from catchment.exchange.payload import Payload
from catchment.families import checks
from catchment.randomness import per_sample
from catchment.tasks.pixels import shifted

MOST_WEIGHT = 10.0  # of an upload: what a client sends that was away for long must not be one giant step


@dataclass(frozen=True)
class Knowledge(Payload):
    """What a client knows of its samples, up: all N_k of them, or fewer if the server has the others already."""

    features: Annotated[Tensor, features("n <= N_k")]  # H
    logits: Annotated[Tensor, logits("n <= N_k")]  # z_k
    labels: Annotated[Tensor, labels("n <= N_k")]  # y_k
    ids: Annotated[Tensor, ids("n <= N_k")]  # ascending
    turn: Turn = 0
    beside: Turn = 0  # what is not here is as in the upload of that turn
    mirrored: Annotated[Tensor, features("n <= N_k")] | None = None  # H of the mirror images


class Augmentation(NamedTuple):
    """What the server does to features of plain images in one epoch, as these cannot be augmented any more."""

    seed: int
    clients: Container[int]  # whose features are of plain images
    mirror: bool = False  # for each sample at random, take the features of its mirror image, which came beside
    shift: int = 0  # move the maps by up to this many pixels, in both directions


@dataclass
class FeatureStore:
    """Features, labels and logits by client, a row per sample, in the order of ids; and the server's answers to them.

    An upload brings all samples of a client, or those that changed since an earlier upload, which it names.
    """

    features: dict[str, Spool]  # H by client k, for each shape of features; those of mirror images are under ~k
    ids: dict[int, Tensor] = field(default_factory=dict)  # [N_k], ascending
    labels: dict[int, Tensor] = field(default_factory=dict)  # [N_k]
    logits: dict[int, Tensor] = field(default_factory=dict)  # z_k, [N_k, C]
    answers: dict[int, Tensor] = field(default_factory=dict)  # z_s, [N_k, C]; zeros before the first
    turns: dict[int, int] = field(default_factory=dict)  # of a client's last upload

    @staticmethod
    def of(server: Server) -> FeatureStore:
        """An empty store for the features of all clients."""
        facts = [architecture.facts for architecture in server.world.client_architectures]
        return FeatureStore({_name(shape): server.spool() for shape in dict.fromkeys(fact.features for fact in facts)})

    def refusal(self, client: int, ids: Tensor, beside: int, dealt: Tensor | None) -> str:
        """Why an upload cannot be kept; `dealt` are the client's samples, None if only the client knows them."""
        if dealt is None and client not in self.ids:
            whole = len(ids) > 0 and checks.ascending(ids)
            return "" if whole else f"{len(ids)} ids came first that are not ascending, at least one"
        own = self.ids[client] if dealt is None else dealt
        if len(ids) == len(own) or self._spool(client) is None:  # there is nothing to stand beside
            same = torch.equal(ids, own)
            return "" if same else f"{len(ids)} ids came that are not the {len(own)} of client {client}"
        if beside != self.turns.get(client):
            return f"{len(ids)} of {len(own)} samples came beside upload {beside}; {self.turns.get(client)} is here"
        return checks.subset(ids, own, client)

    def put(
        self,
        client: int,
        ids: Tensor,
        features: Tensor,
        labels: Tensor,
        logits: Tensor,
        turn: int,
        mirrored: Tensor | None = None,
    ) -> None:
        """Keep an upload that was not refused."""
        if not len(ids):
            return  # nothing changed
        spool = self._spool(client)
        if spool is None or client not in self.ids or len(ids) == len(self.ids[client]):
            spool = self.features[_name(features.shape[1:])]
            spool.put(client, features)
            if mirrored is not None:
                spool.put(~client, mirrored)
            self.ids[client], self.labels[client], self.logits[client] = ids, labels, logits
            self.answers[client] = torch.zeros_like(logits)
        else:
            changed = torch.searchsorted(self.ids[client], ids)
            spool.put(client, features, at=changed)
            self.logits[client] = self.logits[client].index_copy(0, changed, logits)
        self.turns[client] = turn

    def epoch(
        self,
        clients: Sequence[int],
        others: Sequence[int],
        *,
        size: int,
        mixed: bool,
        replay: float,
        shuffle: torch.Generator,
        again: torch.Generator,
        augmentation: Augmentation | None = None,
    ) -> Iterator[Batch]:
        """Batches of all samples of `clients`, and of `replay` times as many that `others` sent before.

        A batch has one shape of features; if not `mixed`, it is of one client. The ids of a batch number the rows of
        all clients and others, one after the other.
        """
        everybody = [*clients, *others]
        sizes = [len(self.ids[k]) for k in everybody]
        rows = dict(zip(everybody, torch.arange(sum(sizes)).split_with_sizes(sizes)))
        labels = torch.cat([self.labels[k] for k in everybody])
        groups: dict[object, list[int]] = {}
        for k in everybody:
            groups.setdefault(self._shape(k) if mixed else k, []).append(k)
        plan: list[tuple[list[int], Tensor, Tensor]] = []
        for group in groups.values():
            numbers = torch.cat([rows[k] for k in group])
            new = sum(len(rows[k]) for k in group if k in clients)
            old = torch.randperm(sum(len(rows[k]) for k in group) - new, generator=again)
            index = torch.cat([torch.arange(new), new + old[: round(replay * new)]])
            index = index[torch.randperm(len(index), generator=shuffle)]
            plan += [(group, part, numbers[part]) for part in index.split_with_sizes(batch_sizes(len(index), size))]
        if mixed and len(groups) > 1:
            plan = [plan[i] for i in torch.randperm(len(plan), generator=shuffle)]
        for group, part, at in plan:
            features = (
                self._take(group, part) if augmentation is None else self._augmented(group, part, at, augmentation)
            )
            yield Batch(features, labels[at], at)

    def in_order(self, clients: Sequence[int], size: int) -> Iterator[Batch]:
        """Batches of all samples of these clients, one client after the other; their ids are those of an epoch."""
        start = 0
        for k in clients:
            for part in torch.arange(len(self.ids[k])).split_with_sizes(batch_sizes(len(self.ids[k]), size)):
                yield Batch(self._take([k], part), self.labels[k][part], start + part)
            start += len(self.ids[k])

    def rows(self, values: dict[int, Tensor], clients: Sequence[int]) -> Tensor:
        """The rows of these clients, numbered as the ids of batches are."""
        return torch.cat([values[k] for k in clients])

    def weights(self, clients: Sequence[int], others: Sequence[int], turns: Mapping[int, int], rarity: float) -> Tensor:
        """Of the samples of `clients`: (mean turns of all clients / turns of the client) ^ rarity; of others' 1."""
        mean = fmean(turns.values())
        weights = {k: min((mean / turns[k]) ** rarity, MOST_WEIGHT) for k in clients}
        return torch.cat([torch.full((len(self.ids[k]),), weights.get(k, 1.0)) for k in [*clients, *others]])

    def answer(self, clients: Sequence[int], z_s: Tensor) -> None:
        """Keep the server's logits, in the rows of these clients."""
        for k, answers in zip(clients, z_s.split_with_sizes([len(self.ids[k]) for k in clients])):
            self.answers[k] = answers.clone()

    def forget_features(self) -> None:
        """Give the disk space back; all else stays."""
        for spool in self.features.values():
            spool.clear()

    def _take(self, keys: Sequence[int], rows: Tensor) -> Tensor:
        """Features under keys that have one shape, numbered one key after the other."""
        features = self.features[self._shape(keys[0])].take(keys, rows)
        return features.contiguous(memory_format=torch.channels_last) if features.ndim == 4 else features

    def _augmented(self, clients: Sequence[int], rows: Tensor, at: Tensor, how: Augmentation) -> Tensor:
        """The same, mirrored and shifted as is drawn for the number of a row in the epoch, whatever batch it is in."""
        mirror, down, right = per_sample(how.seed, at, 3).unbind(1)  # each [B], in [0, 1)
        plain = torch.cat([torch.full((len(self.ids[k]),), k in how.clients) for k in clients])
        keys = list(clients)
        if how.mirror:
            keys += [~k for k in clients if k in how.clients]
            twins = len(plain) - 1 + plain.cumsum(0)  # mirror images come after all others, in the same order
            rows = torch.where(plain[rows] & (mirror < 0.5), twins[rows], rows)
            plain = torch.cat([plain, plain[plain]])
        features = self._take(keys, rows)
        if not how.shift:
            return features
        steps = [((draw * (2 * how.shift + 1)).long() - how.shift) * plain[rows] for draw in (down, right)]
        return shifted(features, *steps).contiguous(memory_format=torch.channels_last)

    def _spool(self, client: int) -> Spool | None:
        return next((spool for spool in self.features.values() if client in spool), None)

    def _shape(self, client: int) -> str:
        return next(shape for shape, spool in self.features.items() if client in spool)


def _name(shape: tuple[int, ...] | None) -> str:
    return "x".join(map(str, shape or ()))


def check_augmentation(world: World, plain: bool, mirror: bool, shift: int) -> None:
    """Refuse to augment features that are of augmented images, are no maps, or would be moved away as a whole."""
    if (mirror or shift) and not plain:
        raise ExperimentError(
            "mirror and shift are for features of plain images, and these are of augmented ones; set freeze_after, or "
            "augment_features = false"
        )
    for edge in world.client_architectures:
        shape = edge.facts.features or ()
        if shift and (len(shape) != 3 or shift >= min(shape[1:])):
            raise ExperimentError(
                f"shift is {shift}, and features of {edge.name} have the shape {list(shape)}; channels, height and "
                "width are expected, and both of these larger"
            )


# ---- on the client ----------------------------------------------------------------------------------------------


def knowledge(
    client: Client, model: nn.Module, extractor: nn.Module, turn: int, plain: bool, mirror: bool
) -> Knowledge:
    """What a model in evaluation mode knows of all samples; the features are those of `extractor`, perhaps not its own.

    `plain` images are not augmented; with `mirror`, their mirror images have features too.
    """
    own, classifier = model.get_submodule("extractor"), model.get_submodule("classifier")
    parts, mirrored = [], []
    with torch.no_grad():
        for batch in client.batches(shuffle=False, augment=not plain):
            features = extractor(batch.images)
            logits = classifier(features) if extractor is own else model(batch.images)
            parts.append((features, logits, batch.labels, batch.ids))
            if mirror and plain:
                mirrored.append(extractor(batch.images.flip(3)))
    if not parts:
        return no_knowledge(client, turn)
    features, logits, labels, ids = (torch.cat(tensors) for tensors in zip(*parts))
    return Knowledge(features, logits, labels, ids, turn, mirrored=torch.cat(mirrored) if mirrored else None)


def no_knowledge(client: Client, turn: int, beside: int = 0) -> Knowledge:
    """The same of no samples."""
    shape = client.world.client_architecture(client.id).facts.features or ()
    none = torch.empty(0, dtype=torch.int64)
    return Knowledge(torch.empty(0, *shape), torch.empty(0, client.world.classes), none, none, turn, beside)


def changes(new: Knowledge, sent: dict[str, Tensor], holds: int, least: float) -> tuple[Knowledge, dict[str, Tensor]]:
    """Only the samples whose features moved by a share of their norm, and what the server has after it took them.

    `sent` is what it had by the client's last account, and `holds` the turn of the upload that it does have.
    """
    features = new.features.cpu()
    after = {"features": features, "turn": torch.tensor(new.turn)}
    if not sent or int(sent["turn"]) != holds:
        return new, after
    old = sent["features"]
    moved = (features - old).flatten(1).norm(dim=1) > least * old.flatten(1).norm(dim=1)
    if not bool(moved.any()):
        after = sent
    else:
        after["features"] = torch.where(moved.view(-1, *[1] * (features.ndim - 1)), features, old)
    few = [tensor.cpu()[moved] for tensor in (features, new.logits, new.labels, new.ids)]
    return Knowledge(few[0], few[1], few[2], few[3], new.turn, holds), after
