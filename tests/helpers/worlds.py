"""Small experiments, one for every method and pattern of exchange."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from catchment import Experiment

HERE = str(Path(__file__).parent)

PLATEAU = {"name": "plateau", "patience": 1}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"method": {"name": "fedavg"}},
    "fedprox": {"method": {"name": "fedprox", "mu": 0.1}},
    "standalone": {"method": {"name": "standalone"}, "models": {"client": ["mlp", "cnn"]}},
    "centralized": {"method": {"name": "centralized"}},
    "fedgkt": {"method": {"name": "fedgkt", "server_epochs": 2}, "models": {"client": "cnn", "server": "resnet10"}},
    "fedgkt, asynchronous": {
        "method": {"name": "fedgkt", "asynchronous": True, "distill": "server-to-edge", "replay": 1.0},
        "models": {"client": ["cnn", "resnet4"], "server": "resnet10"},
        "data": {"augment": ["crop", "flip"]},
    },
    "split learning": {
        "method": {"name": "split", "client_epochs": 2},
        "models": {"client": "resnet4", "server": "resnet10"},
        "data": {"augment": ["crop", "flip"]},
    },
    "splitfed": {"method": {"name": "splitfed"}, "models": {"client": "cnn", "server": "resnet10"}},
    "splitfed, v1": {
        "method": {"name": "splitfed", "variant": "v1"},
        "models": {"client": "resnet4", "server": "resnet10"},
    },
    "fedgkt, averaged": {
        "method": {"name": "fedgkt"},
        "models": {"client": "cnn", "server": "resnet10"},
        "data": {"validation": 0.1},
        "optimizer": {
            "client": {"name": "adam", "lr": 0.005, "schedule": {"name": "cosine", "warmup": 1}},
            "server": {"schedule": PLATEAU},
        },
        "evaluation": {"average": 0.9},
    },
    "fedgkt, coded": {
        "method": {"name": "fedgkt"},
        "models": {"client": "cnn", "server": "resnet10"},
        "wire": {"codecs": ["features=int4+sparse+zstd", "down:logits=int8(0)", "logits=fp16"]},
    },
    "oneshot": {"method": {"name": "oneshot", "server_epochs": 2}, "models": {"client": "cnn", "server": "resnet10"}},
    "oneshot, coded": {
        "method": {"name": "oneshot", "mirror": True, "shift": 1},
        "models": {"client": ["cnn", "resnet4(16,2,1)"], "server": "resnet10"},
        "wire": {"codecs": ["features=int4+zstd", "mirrored=int8+zstd"]},
        "evaluation": {"average": 0.9},
    },
    "fedgem": {
        "method": {"name": "fedgem", "start_epochs": 0},
        "models": {"client": ["mlp", "cnn"], "server": "cnn"},
        "data": {"public": 0.4},
    },
    "fedgems": {
        "method": {"name": "fedgems", "start_epochs": 1},
        "models": {"client": ["mlp", "cnn"], "server": "resnet4"},
        "data": {"public": 0.4, "validation": 0.1, "augment": ["crop", "flip"]},
        "optimizer": {
            "client": {"name": "adam", "lr": 0.005, "schedule": PLATEAU},
            "server": {"schedule": PLATEAU},
        },
    },
    "fedmd": {
        "method": {"name": "fedmd", "transfer_epochs": 1, "alignment": 50},
        "models": {"client": ["mlp", "cnn"]},
        "data": {"public": 0.4},
    },
    "dsfl": {
        "method": {"name": "dsfl", "samples": 60, "server_epochs": 2},
        "models": {"client": ["mlp", "cnn"]},
        "data": {"public": 0.4},
    },
    "cronus": {"method": {"name": "cronus"}, "models": {"client": ["mlp", "cnn"]}, "data": {"public": 0.4}},
    "feddf": {
        "method": {"name": "feddf", "server_steps": 8, "validate_every": 2, "stop_after": 4},
        "data": {"public": 0.4},
    },
    "feddf, two architectures": {
        "method": {"name": "feddf", "server_steps": 4, "stop_after": 100},
        "models": {"client": ["mlp", "cnn"]},
        "data": {"public": 0.4},
    },
    "fedavg, coded": {
        "method": {"name": "fedavg"},
        "wire": {"codecs": ["up:weights/*=update+feedback+topk(0.1)+int8(0)+zstd", "down:weights/*=fp16"]},
    },
    "fedavg, lied to": {
        "method": {"name": "fedavg"},
        "aggregation": {"name": "trimmed_mean", "trim": 0.3},
        "attack": {"name": "lie", "clients": 2, "z": 1.5},
    },
    "fedgkt, poisoned": {
        "method": {"name": "fedgkt"},
        "models": {"client": "cnn", "server": "resnet10"},
        "attack": {"name": "ofom", "clients": [1, 3], "strength": 3.0},
        "inspection": {"action": "drop", "others": 2},
        "participation": {"fraction": 1.0},
    },
    "fedgkt, asynchronous, sign-flip": {
        "method": {"name": "fedgkt", "asynchronous": True},
        "models": {"client": "cnn", "server": "resnet10"},
        "attack": {"name": "sign-flip", "clients": 2, "fields": ["features"]},
        "wire": {"codecs": ["up:features=int8+zstd", "down:logits=fp16"]},
    },
    "splitfed, label-flip": {
        "method": {"name": "splitfed"},
        "models": {"client": "cnn", "server": "resnet10"},
        "attack": {"name": "label-flip"},
        "inspection": {"action": "flag", "others": 2},
        "aggregation": {"name": "krum"},
    },
    "fedzkt": {
        "method": {"name": "fedzkt", "client_epochs": 1, "iterations": 2, "width": 4, "noise": 10},
        "models": {"client": ["mlp", "cnn"], "server": "cnn"},
        "optimizer": {"server": {"name": "sgd", "lr": 0.01}},
    },
    "fedzkt, one architecture": {
        "method": {"name": "fedzkt", "iterations": 2, "width": 4, "loss": "kl", "milestones": "round"},
        "models": {"client": "mlp", "server": "resnet4", "initial": "glorot"},
        "participation": {"fraction": 1.0},
    },
    "fedkgf": {"method": {"name": "fedkgf"}, "models": {"client": "kgf(cnn,8)"}},
    "fedkgf, modules alone, coded": {
        "method": {"name": "fedkgf", "mu": 0.1},
        "models": {"client": "resnet4"},
        "wire": {"codecs": ["up:weights/*=update+feedback+int4(0)"]},
    },
    "fedkgf, detection": {
        "method": {"name": "fedkgf"},
        "models": {"client": "kgf(squares:model,4)"},
        "data": {"name": "squares:images", "train": 40, "test": 8, "augment": ["mosaic", "flip", "colour"]},
        "optimizer": {"client": {"name": "sgd", "lr": 0.01, "batch_size": 4}},
    },
    "dgc": {"method": {"name": "dgc", "warmup": 1}},
    "fedcom": {
        "method": {"name": "fedcom", "tracking": True, "server_rate": 0.9},
        "optimizer": {"client": {"name": "sgd", "lr": 0.05}},
    },
    "fedcams": {"method": {"name": "fedcams"}, "models": {"client": "resnet4"}},
    "smartidx, base kernels": {"method": {"name": "smartidx", "share": 0.2}, "models": {"client": "kgf(cnn,8)"}},
    "fedpm": {"method": {"name": "fedpm", "reset_every": 2}, "models": {"client": "resnet4"}},
}

ONE_EACH = list({table["method"]["name"]: name for name, table in reversed(METHODS.items())}.values())
"""The first world of every method."""

PHONES = {"devices": {"profile": ["phone", "slow-phone", "sensor"]}}
TROUBLE = {
    "devices": {"profile": ["phone", "slow-phone"]},
    "faults": {"drop": 0.1, "crash": 0.1, "delay": 0.2, "delay_seconds": 5.0},
}


def experiment(name: str, *, few: bool = False, **more: Any) -> Experiment:
    """A small experiment with a method of the table above; tables in `more` are merged in.

    With few samples it learns little: for tests in which runs are only compared.
    """
    table: dict[str, Any] = {
        "name": name,
        "rounds": 3,
        "workers": 1,
        "path": HERE,
        "data": {
            "name": "digits",
            "clients": 5,
            "train": 100 if few else 300,
            "test": 20 if few else 100,
            "partition": {"name": "dirichlet", "alpha": 1.0},
        },
        "models": {"client": "cnn"},
        "optimizer": {"client": {"name": "adam", "lr": 0.005}},
        "participation": {"fraction": 0.6},
    }
    for extra in (METHODS[name], more):
        for key, value in extra.items():
            table[key] = {**table.get(key, {}), **value} if isinstance(value, dict) else value
    return Experiment.from_dict(table)
