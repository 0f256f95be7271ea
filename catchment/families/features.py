"""What clients sent of their samples, where the server trains on features: features on the disk, the rest in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from catchment.core.server import Server
from catchment.core.spool import Spool
from catchment.data import Batch
from catchment.data.batching import batch_sizes
from catchment.families import checks


@dataclass
class FeatureStore:
    """Features, labels and logits by client, a row per sample, in the order of ids; and the server's answers to them.

    An upload brings all samples of a client, or those that changed since an earlier upload, which it names.
    """

    features: dict[str, Spool]  # H by client, for each shape of features
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

    def put(self, client: int, ids: Tensor, features: Tensor, labels: Tensor, logits: Tensor, turn: int) -> None:
        """Keep an upload that was not refused."""
        if not len(ids):
            return  # nothing changed
        spool = self._spool(client)
        if spool is None or client not in self.ids or len(ids) == len(self.ids[client]):
            self.features[_name(features.shape[1:])].put(client, features)
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
        plan: list[tuple[list[int], Tensor]] = []
        for group in groups.values():
            new = sum(len(rows[k]) for k in group if k in clients)
            old = torch.randperm(sum(len(rows[k]) for k in group) - new, generator=again)
            index = torch.cat([torch.arange(new), new + old[: round(replay * new)]])
            index = index[torch.randperm(len(index), generator=shuffle)]
            plan += [(group, part) for part in index.split_with_sizes(batch_sizes(len(index), size))]
        if mixed and len(groups) > 1:
            plan = [plan[i] for i in torch.randperm(len(plan), generator=shuffle)]
        for group, part in plan:
            at = torch.cat([rows[k] for k in group])[part]
            yield Batch(self._take(group, part), labels[at], at)

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

    def answer(self, clients: Sequence[int], z_s: Tensor) -> None:
        """Keep the server's logits, in the rows of these clients."""
        for k, answers in zip(clients, z_s.split_with_sizes([len(self.ids[k]) for k in clients])):
            self.answers[k] = answers.clone()

    def forget_features(self) -> None:
        """Give the disk space back; all else stays."""
        for spool in self.features.values():
            spool.clear()

    def _take(self, clients: Sequence[int], rows: Tensor) -> Tensor:
        """Features of clients that have one shape, numbered one client after the other."""
        features = self.features[self._shape(clients[0])].take(clients, rows)
        return features.contiguous(memory_format=torch.channels_last) if features.ndim == 4 else features

    def _spool(self, client: int) -> Spool | None:
        return next((spool for spool in self.features.values() if client in spool), None)

    def _shape(self, client: int) -> str:
        return next(shape for shape, spool in self.features.items() if client in spool)


def _name(shape: tuple[int, ...] | None) -> str:
    return "x".join(map(str, shape or ()))
