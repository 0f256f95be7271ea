"""Small experiments, one for every method and pattern of exchange."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from catchment import Experiment

HERE = str(Path(__file__).parent)

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
    "fedgkt, thrifty": {
        "method": {"name": "fedgkt", "upload_every": 2, "skip_below": 0.3, "patience": 1},
        "models": {"client": "cnn", "server": "resnet10"},
    },
    "fedgkt, coded": {
        "method": {"name": "fedgkt"},
        "models": {"client": "cnn", "server": "resnet10"},
        "wire": {"codecs": ["features=delta+int4+sparse+zstd", "down:logits=delta+int8(0)", "logits=fp16"]},
    },
    "fedavg, coded": {
        "method": {"name": "fedavg"},
        "wire": {"codecs": ["up:weights/*=update+feedback+topk(0.1)+int8(0)+zstd", "down:weights/*=fp16"]},
    },
    "fedkgf": {"method": {"name": "fedkgf", "kernels": 8}},
    "fedkgf, modules alone, coded": {
        "method": {"name": "fedkgf", "kernels": 0, "mu": 0.1},
        "models": {"client": "resnet4"},
        "wire": {"codecs": ["up:weights/*=update+feedback+int4(0)"]},
    },
    "dgc": {"method": {"name": "dgc", "warmup": 1, "clip": 1.0}},
    "fedcom": {
        "method": {"name": "fedcom", "tracking": True, "server_rate": 0.9},
        "optimizer": {"client": {"name": "sgd", "lr": 0.05}},
    },
    "fedcams": {"method": {"name": "fedcams"}, "models": {"client": "resnet4"}},
    "smartidx, base kernels": {"method": {"name": "smartidx", "share": 0.2}, "models": {"client": "kgf(cnn,8)"}},
    "fedpm": {"method": {"name": "fedpm", "reset_every": 2}, "models": {"client": "resnet4"}},
    "transfer": {"method": {"name": "sketches:Transfer"}, "models": {"client": "cnn", "server": "resnet10"}},
    "selective": {"method": {"name": "sketches:Selective"}, "data": {"public": 0.3}},
    "broadcast": {"method": {"name": "sketches:Broadcast"}, "models": {"client": ["mlp", "cnn"]}},
    "modules": {"method": {"name": "sketches:Modules"}},
    "split": {"method": {"name": "sketches:Split"}, "models": {"client": "cnn", "server": "resnet10"}},
}

PHONES = {"devices": {"profile": ["phone", "slow-phone", "sensor"]}}
TROUBLE = {
    "devices": {"profile": ["phone", "slow-phone"]},
    "faults": {"drop": 0.1, "crash": 0.1, "delay": 0.2, "delay_seconds": 5.0},
}


def experiment(name: str, **more: Any) -> Experiment:
    """A small experiment with a method of the table above; tables in `more` are merged in."""
    table: dict[str, Any] = {
        "name": name,
        "rounds": 3,
        "workers": 1,
        "path": HERE,
        "data": {
            "name": "digits",
            "clients": 5,
            "train": 300,
            "test": 100,
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
