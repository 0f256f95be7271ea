"""What a run asks of a device: checked against its policy before anything is read or built, and put in plain words."""

from __future__ import annotations

import json
import math
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
import torch

from catchment import data
from catchment.config.code import own_code
from catchment.config.experiment import Experiment
from catchment.core.declarations import Leaving, leaving
from catchment.data.partition import TABLES
from catchment.data.samples import Form
from catchment.device.disk import Announcement
from catchment.device.policy import Policy, Refusal, digest
from catchment.device.sizes import Sizes, model_sizes
from catchment.errors import CatchmentError, UserError, printable
from catchment.report import human_bytes

USED = (
    "seed", "rounds", "threads", "device", "precision", "method", "data", "models", "optimizer", "wire", "aggregation",
    "attack", "inspection", "evaluation",
)  # fmt: skip  # of an experiment, on a device
MOST_CLIENTS = 1_000_000
NOT_HERE = "the experiment cannot be used on this device"


def announced(experiment: Experiment) -> str:
    """The part of an experiment that a server sends to devices: what they use, without the server's own folders."""
    table = {key: value for key, value in experiment.to_dict().items() if key in USED}
    return tomli_w.dumps(_without_files(table))


@dataclass(frozen=True)
class Proposal:
    """A run that a policy allows, as the device would take part in it."""

    digest: str
    experiment: Experiment  # nothing of it but what a device uses, and no path of the server's
    form: Form
    sizes: Sizes
    sent: tuple[Leaving, ...]

    @staticmethod
    def read(announcement: Announcement, policy: Policy) -> Proposal:
        """Refuse what the policy forbids; what is left can be shown to a person."""
        experiment = _reduced(announcement.experiment, policy)
        form = _form(announcement.form)
        allow, limits = policy.allow, policy.limits
        name = experiment.method["name"]
        sent = leaving(type(experiment.build_method()))
        if not allow.trusted:
            if name not in allow.methods:
                raise Refusal(f"the method is {name}, which allow.methods does not list", "the method is not allowed")
            for field in sent:
                if field.kind not in allow.leaves:
                    raise Refusal(
                        f"clients of {name} send {field.field} ({field.kind}), which allow.leaves does not list",
                        f"the device does not send {field.kind}",
                    )
        if not policy.client < experiment.data.clients <= MOST_CLIENTS:
            raise Refusal(
                f"this is client {policy.client}, and the experiment has {experiment.data.clients:,} clients",
                "the experiment has no such client",
            )
        for asked, key in ((experiment.rounds, "rounds"), (experiment.threads, "threads")):
            if asked > getattr(limits, key):
                raise Refusal(
                    f"the experiment has {asked:,} {key}; limits.{key} is {getattr(limits, key):,.0f}",
                    f"the experiment has more {key} than the device allows",
                )
        return Proposal(digest(*announcement), experiment, form, model_sizes(experiment, form, limits.parameters), sent)

    def summary(self, policy: Policy) -> str:
        """What a person agrees to."""
        e, limits = self.experiment, policy.limits
        signed = (
            "nobody: this policy says insecure" if policy.federation is None else f"the key {policy.federation.name}"
        )
        built = ", ".join(f"{printable(name)} ({count:,} parameters)" for name, count in self.sizes.parameters.items())
        lines = [
            f"The server {policy.server} asks client {policy.client} to take part in a run.",
            f"  method   {printable(e.method['name'])}, {e.rounds:,} rounds, {e.data.clients:,} clients",
            f"  models   {built}",
            f"  data     {'your own' if e.data.own else 'your part of ' + printable(e.data.name)}",
            f"  signed   by {signed}",
            f"  digest   {self.digest}",
            "What this device sends (N_k: your samples, C: classes):",
        ]
        lines += [f"  {_words(field, self._about(field))}" for field in self.sent]
        lines.append(
            f"At most {limits.seconds_per_request:,.0f} s of work and {_size(limits.bytes_up_per_message)} per answer, "
            f"{limits.seconds_per_run:,.0f} s and {_size(limits.bytes_up_per_run)} in all; everything sent is logged "
            "in sent.jsonl."
        )
        return "\n".join(lines)

    def _about(self, field: Leaving) -> str:
        """About how many bytes a field has, where that is more than a few."""
        if field.kind in ("weights", "masks"):
            return f"up to {human_bytes(4 * max(self.sizes.parameters.values()))}"
        per_sample = {
            "logits": 4 * len(self.form.classes),
            "features": 4 * max(self.sizes.features.values(), default=0),
            "images": torch.Size(self.form.shape).numel(),
        }.get(field.kind)
        return "" if per_sample is None else f"{human_bytes(per_sample)} per sample"


def _size(limit: float) -> str:
    return "any number of bytes" if math.isinf(limit) else human_bytes(limit)


def _words(field: Leaving, about: str) -> str:
    return f"{field.kind:<8} {field.handler}.{field.field}: {field.shape}" + (f", {about}" if about else "")


# ---- the experiment without what a device does not use -----------------------------------------------------------


def _reduced(text: str, policy: Policy) -> Experiment:
    """The experiment on this machine: data and modules from the policy's folders, no path and no code of others."""
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Refusal(f"the experiment is not valid TOML: {error}", NOT_HERE) from None
    if not policy.allow.trusted:
        table = _without_files({key: value for key, value in table.items() if key in USED})
        table["data"] = _own_folders(table.get("data", {}))
        for place, name in own_code(table):
            _check_module(place, name, policy.modules)
    if policy.modules is not None:
        table["path"] = str(policy.modules)
    if policy.data is not None and isinstance(table.get("data"), dict):
        table["data"]["root"] = str(policy.data)
    try:
        return Experiment.from_dict(table)
    except UserError as error:
        raise Refusal(str(error), NOT_HERE) from None


def _without_files(table: dict[str, Any]) -> dict[str, Any]:
    """An experiment without the folders and files that only the server reads."""
    kept = dict(table)
    for name, keys in (("data", ("root", "download")), ("models", ("weights",))):
        if isinstance(settings := kept.get(name), dict):
            kept[name] = {key: value for key, value in settings.items() if key not in keys}
    return kept


def _own_folders(settings: Any) -> dict[str, Any]:
    """`[data]` without paths: only data sets known by name, and partition tables that come with Catchment."""
    if not isinstance(settings, dict):
        raise Refusal(f"data is {printable(settings)}; a table is expected", NOT_HERE)
    partition = settings.get("partition", {})
    if isinstance(partition, dict) and partition.get("name") == data.OWN:
        return {key: value for key, value in settings.items() if key not in ("name", "test", "mean", "std", "classes")}
    public = settings.get("public")
    for key, name in (
        ("name", settings.get("name")),
        ("public.name", public.get("name") if isinstance(public, dict) else None),
    ):
        if name is not None and name not in data.SOURCES and ":" not in str(name):
            raise Refusal(f'data.{key} is "{printable(name)}", which is not a known data set', "no path is followed")
    file = partition.get("file") if isinstance(partition, dict) else None
    if file is not None and file not in [table.name.removesuffix(".csv") for table in TABLES.iterdir()]:
        raise Refusal(f'data.partition.file is "{printable(file)}", a file of the server\'s', "no path is followed")
    return settings


def _check_module(place: str, name: str, folder: Path | None) -> None:
    """Refuse a name like "module:attribute" unless the module lies in the owner's folder."""
    if folder is None:
        raise Refusal(
            f'{place} is "{printable(name)}", and the policy has no folder of modules; set modules = "DIR" to import '
            "it from there",
            "the device imports no code that an experiment names",
        )
    found = re.findall(r"([A-Za-z_]\w*)[\w.]*:", name)
    if not found or not all((folder / f"{top}.py").is_file() or (folder / top).is_dir() for top in found):
        raise Refusal(
            f'{place} is "{printable(name)}", which is not in {folder}',
            "the device has no such module",
        )


def _form(text: str) -> Form:
    try:
        return Form.from_dict(json.loads(text))
    except (ValueError, TypeError, RecursionError, CatchmentError) as error:
        raise Refusal(f"the form of the data cannot be read: {error}", NOT_HERE) from None
