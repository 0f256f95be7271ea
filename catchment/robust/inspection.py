"""A look at uploaded features and logits: does a client send something unlike what all others send?

A robust mean has no place in methods that train on what each client sends, as FedGKT and split learning do. There, a
few statistics of every upload are compared with those of the other clients:

- the size of features, and of logits: the mean norm of a row;
- the variety of features: how far rows are from their mean;
- the classes: how far the mean features of each class, seen from the middle of all classes, are from those of the
  other clients, in units of their own distance from the middle;
- disagreement: the share of samples whose logits point to another class than their label; for public samples, whose
  labels do not travel, than the median of all clients does.

A client stands out if a statistic is more than `threshold` deviations from the median of the others. The deviation is
the median absolute deviation of the others, scaled as for a normal distribution and at least `least`: where all are
nearly alike, the smallest difference would look large. Sizes and variety are compared as logarithms. Statistics are
over the samples of an upload or, where uploads are small, as the batches of split learning, over about the last
`window` samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log
from statistics import median
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from catchment.exchange.message import Message
from catchment.reading import Count, NonNegative
from catchment.robust.aggregators import GAUSSIAN

Profile = dict[str, Tensor]
"""What is remembered of a client's last samples: their number as `rows`, sums over them by name, and for each of the
classes in `labels` its number of samples in `counts` and the sum of their features in `sums`."""

BOTH_SIDES = ("size of features", "variety of features", "size of logits")  # suspicious if too small or too large
UPWARDS = ("classes of features", "disagreement of logits with labels", "disagreement of logits with others")


@dataclass(frozen=True)
class Inspection:
    """`[inspection]`: what is compared, and what happens to a client that stands out."""

    action: Literal["none", "flag", "drop"] = "none"
    """What happens to uploads of a client that stands out: nothing is compared, they are flagged, or the method does
    not get them."""
    threshold: NonNegative = 5.0
    """A client stands out that is more than this many deviations from the median of the others."""
    least: NonNegative = 0.1
    """The smallest deviation: 0.1 is 10 %, or 10 points of disagreement."""
    others: Annotated[int, Field(ge=2)] = 3
    """The minimum number of other clients to compare with."""
    window: Count = 512
    """Samples of a client that are taken together."""
    samples: Count = 64
    """The minimum number of samples of a client before it is judged or compared with."""

    def judge(self, uploads: Mapping[int, Message], known: Mapping[int, Profile]) -> tuple[dict[int, str], Profiles]:
        """Why clients stand out, for those who do, and what is now known of all.

        `uploads` are the replies to one question; they are compared with each other, and with what clients that were
        not asked now sent last.
        """
        disagreements = _disagreements(uploads)
        profiles = dict(known)
        for client, message in sorted(uploads.items()):
            if fresh := _profile(message, disagreements.get(client)):
                profiles[client] = _together(known.get(client, {}), fresh, self.window)
        heard = {client: profile for client, profile in profiles.items() if float(profile["rows"]) >= self.samples}
        numbers = {client: {**_numbers(profile), **_classes(client, heard)} for client, profile in heard.items()}
        reasons = {client: self._reasons(client, numbers) for client in sorted(uploads) if client in numbers}
        return {client: "; ".join(found) for client, found in reasons.items() if found}, profiles

    def _reasons(self, client: int, numbers: Mapping[int, Mapping[str, float]]) -> list[str]:
        reasons = []
        for name, own in numbers[client].items():
            others = [theirs[name] for other, theirs in numbers.items() if other != client and name in theirs]
            if len(others) < self.others:
                continue
            middle = median(others)
            usual = max(GAUSSIAN * median(abs(value - middle) for value in others), self.least)
            away = (own - middle) / usual
            if away > self.threshold or (name in BOTH_SIDES and -away > self.threshold):
                reasons.append(f"{name} {_shown(name, own)}, others {_shown(name, middle)} ({away:+.1f} deviations)")
        return reasons


Profiles = dict[int, Profile]


# ---- statistics of an upload ------------------------------------------------------------------------------------


def _profile(message: Message, disagreement: Tensor | None) -> Profile:
    """The sums over an upload; nothing if there are neither features nor logits in it."""
    profile: Profile = {}
    features, logits, labels = (message.tensors.get(name) for name in ("features", "logits", "labels"))
    labels = labels if labels is not None and labels.ndim == 1 and not labels.dtype.is_floating_point else None
    if features is not None and _has_rows(features):
        rows = features.flatten(2).mean(dim=2).double() if features.ndim > 2 else features.double()  # [n, channels]
        profile[BOTH_SIDES[0]] = rows.norm(dim=1).sum()
        profile[BOTH_SIDES[1]] = (rows - rows.mean(dim=0)).norm(dim=1).sum()
        profile["rows"] = torch.tensor(float(len(rows)))
        if labels is not None and len(labels) == len(rows):
            present, places = torch.unique(labels, return_inverse=True)
            sums = torch.zeros(len(present), rows.shape[1], dtype=torch.float64).index_add_(0, places, rows)
            profile |= {"labels": present, "counts": places.bincount().double(), "sums": sums}
    if logits is not None and _has_rows(logits):
        profile[BOTH_SIDES[2]] = logits.double().flatten(1).norm(dim=1).sum()
        profile["rows"] = torch.tensor(float(len(logits)))
        if labels is not None and len(labels) == len(logits):
            profile[UPWARDS[1]] = (logits.argmax(dim=1) != labels).double().sum()
        elif disagreement is not None:
            profile[UPWARDS[2]] = disagreement
    return profile


def _together(old: Profile, new: Profile, window: int) -> Profile:
    """The sums over an upload and the ones before it, which fade as new samples come."""
    kept = max(0.0, 1 - float(new["rows"]) / window)
    if not kept or old.keys() != new.keys():
        return new
    result = {name: kept * old[name] + value for name, value in new.items() if value.ndim == 0}
    if "labels" in new:
        both = dict.fromkeys([*old["labels"].tolist(), *new["labels"].tolist()])
        result["labels"] = labels = torch.tensor(sorted(both))
        for name in ("counts", "sums"):
            total = torch.zeros(len(labels), *new[name].shape[1:], dtype=torch.float64)
            total[torch.searchsorted(labels, old["labels"])] = kept * old[name]
            total[torch.searchsorted(labels, new["labels"])] += new[name]
            result[name] = total
    return result


def _disagreements(uploads: Mapping[int, Message]) -> dict[int, Tensor]:
    """By client, the number of public samples for which it points to another class than the median of all does."""
    logits = {
        client: message.tensors["logits"]
        for client, message in sorted(uploads.items())
        if "logits" in message.tensors and "labels" not in message.tensors
    }
    if len({tensor.shape for tensor in logits.values()}) != 1 or not all(map(_has_rows, logits.values())):
        return {}
    middle = torch.stack(list(logits.values())).median(dim=0).values.argmax(dim=1)
    return {client: (own.argmax(dim=1) != middle).double().sum() for client, own in logits.items()}


def _numbers(profile: Profile) -> dict[str, float]:
    """What is compared: means, as logarithms where they are sizes."""
    means = {n: float(s / profile["rows"]) for n, s in profile.items() if n in (*BOTH_SIDES, *UPWARDS)}
    return {name: log(max(mean, TINY)) if name in BOTH_SIDES else mean for name, mean in means.items()}


def _classes(client: int, profiles: Mapping[int, Profile]) -> dict[str, float]:
    """How far a client's classes lie from where the others have them; nothing if too few others have them."""
    own = _centres(profiles[client])
    theirs: dict[int, list[Tensor]] = {}
    for other, profile in profiles.items():
        for label, centre in _centres(profile).items():
            if other != client and label in own and centre.shape == own[label].shape:
                theirs.setdefault(label, []).append(centre)
    if len(theirs) < 2:
        return {}
    mine = torch.stack([own[label] for label in theirs])
    usual = torch.stack([torch.stack(centres).median(dim=0).values for centres in theirs.values()])
    mine, usual = mine - mine.mean(dim=0), usual - usual.mean(dim=0)
    return {UPWARDS[0]: float((mine - usual).norm(dim=1).mean() / usual.norm(dim=1).mean().clamp(min=TINY))}


def _centres(profile: Profile) -> dict[int, Tensor]:
    """The mean features of each class."""
    if "labels" not in profile:
        return {}
    return dict(zip(profile["labels"].tolist(), profile["sums"] / profile["counts"].unsqueeze(1)))


TINY = 1e-30


def _has_rows(tensor: Tensor) -> bool:
    return tensor.ndim > 1 and tensor.numel() > 0 and tensor.dtype.is_floating_point and bool(tensor.isfinite().all())


def _shown(name: str, number: float) -> str:
    return f"{exp(number) if name in BOTH_SIDES else number:.3g}"
