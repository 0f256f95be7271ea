"""Random experiments: those of `worlds` with other options, data, models, optimisers, devices, faults, attacks, codecs.

What is drawn need not be possible: `check` says so. `judging` has what must hold of all that it lets through.
"""

from __future__ import annotations

import dataclasses
import math
import random
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from worlds import METHODS, PLATEAU

from catchment import Client, Dataset, Fleet, Server, on_client
from catchment.config.toml import merged, plain
from catchment.families.weights import GlobalModel, GlobalState, LocalModel
from catchment.methods import METHODS as BUILT_IN
from catchment.methods.fedavg import FedAvg
from catchment.names import resolve

SANE, MISTAKEN = "fedavg, sane", "fedavg, mistaken"
WORLDS: dict[str, dict[str, Any]] = {
    **METHODS,
    SANE: {"method": {"name": "fedavg"}},
    MISTAKEN: {"method": {"name": "combining:Mistaken"}, "rounds": 5},
}
SETS = ("one_class", "lone", "odd", "colour", "floats")
EDGES = ("cnn", "cnn(4)", "resnet4", "resnet4(8,2)", "resnet6(4,1)", "resnet8", "models_of_users:flat_edge")
WHOLE = (*EDGES, "mlp", "mlp(8)", "resnet(1,1,1)", "kgf(cnn,4)", "mobilenetv2(0.6)")
WHOLE += ("models_of_users:dropout", "models_of_users:tied", "combining:einsum")
HALVES = ("resnet10", "half(1,1,1)", "models_of_users:flat_half")
PATTERNS = ("*", "weights/*", "weights", "features", "logits", "*logits", "masks/*", "buffers/*", "nothing")
STAGES = (
    ("update",), ("feedback", "momentum(0.9)"), ("topk(0.1)", "topk(0.01,2)", "smartidx(0.1)"),
    ("fp16", "bf16", "int8", "int8(0)", "int4", "sign"), ("sparse", "golomb"), ("zstd", "zstd(9)"),
)  # fmt: skip
PARTITIONS: tuple[dict[str, Any], ...] = (
    {"name": "iid"},
    {"name": "dirichlet", "alpha": 0.05, "minimum": 0},
    {"name": "dirichlet", "alpha": 0.3, "minimum": 0},
    {"name": "dirichlet", "alpha": 0.1},
    {"name": "dirichlet", "alpha": 1.0},
    {"name": "classes_per_client", "classes": 1},
    {"name": "main_class", "share": 0.9},
)
SCHEDULES: tuple[dict[str, Any], ...] = (
    {"name": "cosine", "warmup": 1},
    {"name": "step", "every": 1, "factor": 0.5},
    {"name": "step", "at": [2]},
    PLATEAU,
    {"name": "constant", "warmup": 2},
)
ATTACKS = ("paf", "ofom", "lie", "sign-flip", "label-flip")
AGGREGATIONS = ("median", "trimmed_mean", "krum", "cronus")
PROFILES = ("ideal", "sensor", "raspberry", "phone", "slow-phone", "laptop", "1mbit", "rare")
RARE = {"rare": {"compute": 1e9, "up": 2.0, "down": 5.0, "latency": 0.1, "availability": 0.5}}


class Dice(random.Random):
    """A generator that also tosses a coin."""

    def happens(self, chance: float) -> bool:
        return self.random() < chance


@dataclass(frozen=True)
class Trial:
    """An experiment, and whether two ranks run it too."""

    table: dict[str, Any]
    ranks: bool = False


def drawn(seed: int, number: int, only: Sequence[str] = ()) -> Trial:
    """One of the experiments of a seed; with `only`, of these worlds."""
    dice = Dice(f"{seed} {number}")
    if only:
        name = dice.choice(only)
    else:
        name = MISTAKEN if dice.happens(0.06) else SANE if dice.happens(0.04) else dice.choice(list(METHODS))
    table: dict[str, Any] = {
        "name": name,
        "seed": dice.randrange(1000),
        "rounds": dice.choice([1, 2, 3, 3, 4]),
        "data": {"name": "digits", "clients": 4, "train": 80, "test": 40, "partition": {"name": "iid"}},
        "models": {"client": "cnn"},
        "optimizer": {"client": {"name": "adam", "lr": 0.005}},
    }
    table = merged(table, WORLDS[name])
    if name == SANE:
        return Trial(merged(table, dict(_sane(dice))))
    parts = (_method, _data, _models, _optimizers, _numbers, _people, _trouble, _lies, _wire)
    for part in parts:
        table = merged(table, part(dice, table))
    if ranks := name != MISTAKEN and dice.happens(0.04):
        table |= {"data_parallel": dice.happens(0.6), "precision": dice.choice(["float32", "bfloat16"])}
    return Trial(plain(table), ranks)


def _sane(dice: Dice) -> Iterator[tuple[str, Any]]:
    """What FedAvg must learn with."""
    yield "rounds", 6
    yield "data", {"train": 400, "test": 150, "partition": dice.choice([{"name": "iid"}, PARTITIONS[4]])}
    yield "models", {"client": dice.choice(["cnn", "mlp", "combining:einsum"])}
    yield "precision", dice.choice(["float32", "bfloat16"])
    sgd = {"name": "sgd", "lr": 0.1, "momentum": dice.choice([0.0, 0.5]), "batch_size": 16}
    yield "optimizer", {"client": dice.choice([sgd, {"name": "adam", "lr": 0.005, "amsgrad": dice.happens(0.5)}])}
    yield "wire", {"codecs": dice.choice([[], ["up:weights/*=update+feedback+int8(0)"], ["weights/*=fp16"]])}


def _method(dice: Dice, table: dict[str, Any]) -> dict[str, Any]:
    """Other values of some of the method's options, as their types allow."""
    kind = resolve("method", table["method"]["name"], BUILT_IN)
    hints, options = typing.get_type_hints(kind), {"name": table["method"]["name"]}
    for option in dataclasses.fields(kind):
        if option.init and dice.happens(0.5 if kind is Mistaken else 0.12):
            options[option.name] = _value(dice, hints[option.name], getattr(kind, option.name))
    return {"method": options}


def _value(dice: Dice, hint: Any, default: Any) -> Any:
    """One that the type allows; the default of types that say nothing of their values."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return dice.choice(inner)
    if inner:
        return _value(dice, inner[0], default)
    values: dict[Any, tuple[Any, ...]] = {bool: (True, False), int: (0, 1, 2, 3), float: (0.0, 0.1, 0.5, 1.0, 3.0)}
    return dice.choice(values.get(hint, (default,)))


def _data(dice: Dice, table: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = {"clients": dice.choice([1, 2, 3, 4, 4, 6, 9]), "partition": dice.choice(PARTITIONS)}
    if table["data"]["name"] == "digits":
        data["train"], data["test"] = dice.choice([30, 60, 120]), dice.choice([1, 20, 60])
        if dice.happens(0.25):
            data |= {"name": f"combining:{dice.choice(SETS)}", "train": None, "test": None}
        if dice.happens(0.3):
            data["augment"] = dice.choice([["crop"], ["flip"], ["crop", "flip"]])
    if "public" in table["data"] or dice.happens(0.05):
        data["public"] = dice.choice([0.2, 0.4, 0.6, {"name": "models_of_users:letters"}])
    if dice.happens(0.15):
        data["validation"] = dice.choice([0.1, 0.3])
    return {"data": data}


def _models(dice: Dice, table: dict[str, Any]) -> dict[str, Any]:
    models: dict[str, Any] = {}
    own = table["data"]["name"].startswith("squares")
    half = table["models"].get("server") in HALVES
    if dice.happens(0.5) and not own:
        names = EDGES if half else WHOLE
        models["client"] = dice.choice([dice.choice(names), [dice.choice(names), dice.choice(names)]])
    if "server" in table["models"] and dice.happens(0.3):
        models["server"] = dice.choice(HALVES if half else WHOLE)
    if dice.happens(0.1):
        models["initial"] = "glorot"
    return {"models": models}


def _optimizers(dice: Dice, table: dict[str, Any]) -> dict[str, Any]:
    sides = {}
    for side in ("client", "server"):
        if dice.happens(0.5):
            name = dice.choice(["adam", "adamw", "sgd"])
            settings: dict[str, Any] = {"name": name, "lr": dice.choice([0.001, 0.005, 0.02])}
            settings["batch_size"] = dice.choice([1, 3, 8, 32, 1000])
            if name == "sgd" and dice.happens(0.5):
                settings |= {"momentum": 0.9, "nesterov": dice.happens(0.5)}
            if name != "sgd" and dice.happens(0.3):
                settings["amsgrad"] = True
            if dice.happens(0.2):
                settings["weight_decay"] = 0.01
            if dice.happens(0.4):
                settings["schedule"] = dice.choice(SCHEDULES)
            sides[side] = settings
    plateau = any(settings.get("schedule") == PLATEAU for settings in sides.values())
    return {"optimizer": sides, "data": {"validation": 0.2} if plateau else {}}


def _numbers(dice: Dice, table: dict[str, Any]) -> dict[str, Any]:
    """Precision, averages, and how often things are done."""
    settings: dict[str, Any] = {}
    if dice.happens(0.2):
        settings["precision"] = "bfloat16"
    if dice.happens(0.3):
        settings["evaluation"] = {"average": dice.choice([0.0, 0.5, 0.99])}
    if dice.happens(0.2):
        settings["evaluation"] = {**settings.get("evaluation", {}), "every": 2}
    if dice.happens(0.1):
        settings["evaluation"] = {**settings.get("evaluation", {}), "clients": 2}
    if dice.happens(0.15):
        settings["checkpoint"] = {"every": 2}
    return settings


def _people(dice: Dice, table: dict[str, Any]) -> dict[str, Any]:
    """Who takes part, with which devices."""
    settings: dict[str, Any] = {}
    if dice.happens(0.5):
        settings["participation"] = {"fraction": dice.choice([0.3, 0.6, 1.0])}
    if dice.happens(0.4):
        settings["devices"] = {"profile": dice.choices(PROFILES, k=dice.choice([1, 2, 3])), "profiles": RARE}
        if dice.happens(0.4):
            deadline = dice.choice([0.01, 0.05, 0.5, 5.0, 60.0])
            settings["participation"] = {**settings.get("participation", {}), "deadline": deadline}
    return settings


def _trouble(dice: Dice, table: dict[str, Any]) -> dict[str, Any]:
    if table["name"] == MISTAKEN or not dice.happens(0.25):
        return {}
    share = dice.choice([0.1, 0.4])
    return {"faults": {fault: share for fault in ("drop", "crash", "delay") if dice.happens(0.5)}}


def _lies(dice: Dice, table: dict[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if "attack" in table and table["data"]["clients"] < 4:
        settings["attack"] = {"name": "none"}
    elif table["name"] != MISTAKEN and dice.happens(0.12):
        settings["attack"] = {"name": dice.choice(ATTACKS), "clients": 1}
    if dice.happens(0.12):
        settings["aggregation"] = {"name": dice.choice(AGGREGATIONS)}
    if dice.happens(0.1):
        settings["inspection"] = {"action": dice.choice(["flag", "drop"]), "others": 2, "samples": 8}
    return settings


def _wire(dice: Dice, table: dict[str, Any]) -> dict[str, Any]:
    if not dice.happens(0.3):
        return {}
    rules = []
    for _ in range(dice.choice([1, 2])):
        chain = [dice.choice(stages) for stages in STAGES if dice.happens(0.35)] or ["int8"]
        rules.append(f"{dice.choice(['', 'up:', 'down:'])}{dice.choice(PATTERNS)}={'+'.join(chain)}")
    return {"wire": {"codecs": rules}}


# ---- what experiments name --------------------------------------------------------------------------------------


def _images(train: int, test: int, shape: tuple[int, ...], classes: int, kind: str = "uint8") -> Dataset:
    """Noise around an image for each class."""
    numbers = np.random.default_rng(0)
    labels = np.arange(train + test) % classes
    pixels = numbers.normal(size=(classes, *shape))[labels] + numbers.normal(size=(train + test, *shape)) / 2
    images = pixels.astype(np.float32) if kind == "float" else (128 + 30 * pixels).clip(0, 255).astype(np.uint8)
    return Dataset.of(images[:train], labels[:train], images[train:], labels[train:])


def one_class() -> Dataset:
    return _images(40, 10, (1, 8, 8), 1)


def lone() -> Dataset:
    """As many samples as most clients there are."""
    return _images(9, 5, (1, 8, 8), 3)


def odd() -> Dataset:
    return _images(60, 20, (1, 7, 5), 3)


def colour() -> Dataset:
    return _images(60, 20, (3, 9, 12), 4)


def floats() -> Dataset:
    return _images(60, 20, (2, 8, 8), 5, "float")


class Einsum(nn.Module):
    """One layer whose gradient is not laid out as its weights are."""

    def __init__(self, numbers: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, numbers) / 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.einsum("nd,cd->nc", images.flatten(1), self.weight)


def einsum(shape: tuple[int, int, int], classes: int) -> nn.Module:
    return Einsum(math.prod(shape), classes)


PLANTED = "a mistake of the author's"


@dataclass(frozen=True)
class Mistaken(FedAvg):
    """FedAvg with a mistake from some round on: in the handler, or on the server after all replies."""

    where: Literal["handler", "server"] = "handler"
    since: int = 2

    def round(self, server: Server, state: GlobalState, fleet: Fleet) -> None:
        super().round(server, state, fleet)
        if self.where == "server" and server.round >= self.since:
            raise LookupError(PLANTED)

    @on_client
    def local_training(self, client: Client, request: GlobalModel) -> LocalModel:
        if self.where == "handler" and client.round >= self.since:
            raise LookupError(PLANTED)
        return super().local_training(client, request)
