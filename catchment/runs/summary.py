"""The parts of a run's records: what was measured, sent and disclosed, what it cost, and who attacked."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from catchment.config.experiment import Experiment
from catchment.core.architecture import Architecture
from catchment.core.expectations import Expectations
from catchment.core.ledger import Ledger
from catchment.core.method import Metrics, SameForAll
from catchment.core.world import World
from catchment.privacy.disclosure import disclosed
from catchment.robust import AttackPlan
from catchment.runs.falling import fall_of
from catchment.runs.history import History
from catchment.runs.reading import shown_headline
from catchment.runs.records import (
    AttackRecord,
    ByClient,
    BytesByField,
    ClientScores,
    Costs,
    DataSizes,
    Fall,
    LeavingField,
    ModelCosts,
    ModelScore,
    Round,
    ServerScore,
    Spread,
)
from catchment.tasks.quality import Quality


def measured(metrics: Metrics | None, world: World, expectations: Expectations | None = None) -> dict[str, Any]:
    """The fields of a round that an evaluation fills; none without one.

    Those that take room are there only with `expectations`, which know how many samples clients have.
    """
    if metrics is None:
        return {}
    quality = metrics.quality
    found: dict[str, Any] = {} if quality is None else {"scores": quality.numbers(), "recall": quality.recall}
    if expectations is not None:
        found["confusion"] = [] if quality is None else quality.confusion
        found["by_client"] = _by_client(metrics.by_client, expectations) if metrics.by_client else None
    return {
        **found,
        "accuracy": metrics.accuracy,
        "server": None if metrics.server is None else _server_score(metrics.server),
        "clients": _client_scores(metrics.clients) if metrics.clients else None,
        "models": _model_scores(metrics.clients, world) if metrics.clients else None,
        "more": dict(metrics.more),
        "self_reported": list(metrics.self_reported),
    }


def fall(history: History, final: Round, world: World) -> Fall | None:
    """How far the run ended below an earlier round; None if that may be chance."""
    if history.best is None or history.best.accuracy <= final.scores.get("majority", -1.0):
        return None  # a run that never beat a constant answer has nothing to fall from
    name = shown_headline(final, history.headline)
    is_share = name == "accuracy" and bool(final.recall)  # in detection, accuracy is not a share of images
    return fall_of(history.curve, name, len(world.data.test) if is_share else None)


def _by_client(found: Mapping[int, Quality], expectations: Expectations) -> ByClient:
    sizes = [expectations.known(client) for client in found]
    return ByClient(
        clients=list(found),
        samples=[size.samples if size.exact else None for size in sizes],
        accuracy=[quality.accuracy for quality in found.values()],
        balanced_accuracy=[quality.balanced_accuracy for quality in found.values()],
    )


def _server_score(numbers: Mapping[str, float]) -> ServerScore:
    others = {name: number for name, number in numbers.items() if name != "accuracy"}
    return ServerScore(accuracy=numbers.get("accuracy"), others=others)


def _client_scores(clients: Mapping[int, float]) -> ClientScores:
    if isinstance(clients, SameForAll):
        count, accuracy = len(clients), clients.accuracy
        mean = count * accuracy / count  # what fmean gives for this many equal values, to the last digit
        return ClientScores(accuracy=Spread(mean=mean, min=accuracy, max=accuracy))
    values = list(clients.values())
    return ClientScores(accuracy=Spread(mean=statistics.fmean(values), min=min(values), max=max(values)))


def _model_scores(clients: Mapping[int, float], world: World) -> dict[str, ModelScore] | None:
    """The mean over the clients of each model; None if all have the same."""
    if len(set(world.client_models)) == 1:
        return None
    models: dict[str, list[float]] = {}
    for client, accuracy in sorted(clients.items()):
        models.setdefault(world.client_architecture(client).name, []).append(accuracy)
    return {name: ModelScore(accuracy=statistics.fmean(own)) for name, own in models.items()}


def attack_record(experiment: Experiment, plan: AttackPlan | None, used: list[dict[str, float]]) -> AttackRecord | None:
    """What was done by whom, and the strengths that were used; None if everybody was honest."""
    if plan is None:
        return None
    settings = {key: value for key, value in experiment.attack.items() if key != "name"}
    name = experiment.attack["name"]
    return AttackRecord(name=name, settings=settings, attackers=list(plan.attackers), used=used)


def bytes_by_field(ledger: Ledger) -> BytesByField:
    """Bytes of training by the field of the payload that they carried."""
    found: dict[str, dict[str, int]] = {"up": {}, "down": {}}
    for (direction, field), size in sorted(ledger.fields.items()):
        found[direction][field] = size
    return BytesByField(**found)


def leaving_fields(world: World) -> list[LeavingField]:
    """What a device sends, such as that of the first client."""
    return [LeavingField(**row._asdict(), shows=row.shows) for row in disclosed(type(world.method), world)]


def model_costs(world: World, peaks: Mapping[str, int | None]) -> Costs:
    """The size and the work of the models, and the peak memory of the handlers."""
    clients = {architecture.name: _costs_of(architecture) for architecture in world.client_architectures}
    server = None if world.server_model is None else {world.server_model: _costs_of(world.server_architecture)}
    return Costs(clients=clients, peak_memory=dict(peaks), server=server)


def _costs_of(architecture: Architecture) -> ModelCosts:
    return ModelCosts(parameters=architecture.facts.parameters, macs_per_sample=architecture.facts.total_macs)


def data_sizes(experiment: Experiment, world: World) -> DataSizes:
    """How many samples there are; of clients with data of their own, only they know."""
    division = world.data
    sizes = None if division.own else division.clients.sizes
    return DataSizes(
        name=experiment.data.name,
        clients=len(division.clients),
        train=None if sizes is None else int(sizes.sum()),
        smallest_client=None if sizes is None else int(sizes.min()),
        largest_client=None if sizes is None else int(sizes.max()),
        test=len(division.test),
        public=0 if division.public is None else len(division.public),
        faults=dict(division.dataset.faults),
        classes=list(division.dataset.classes),
    )
