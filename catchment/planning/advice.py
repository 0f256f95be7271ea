"""Which methods suit an experiment: those that its world allows and its devices can do, by what our studies found.

What they found is in `found.json`, which is installed with the package and made from the committed results by
`benchmarks/found.py`. Accuracies of different settings cannot be compared, so methods are ranked within one: that
nearest to the experiment of those that compare at least two of the methods. Others follow by their own nearest setting.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from catchment.codecs import parse_rule
from catchment.config.experiment import Experiment
from catchment.core.patterns import is_about
from catchment.data.sources import WITH_BOXES
from catchment.errors import CatchmentError
from catchment.methods import METHODS
from catchment.planning.plan import Plan, plan

FOUND = Path(__file__).with_name("found.json")
BASELINES = ("standalone", "centralized")  # to compare with, not to choose
SECONDS = 2.0  # for the walk of one method


@dataclass(frozen=True)
class Setting:
    """Where methods were compared."""

    study: str
    data: str
    train: int | None
    clients: int
    partition: str
    public: bool
    boxes: bool  # detection, whose accuracy is mAP
    methods: Mapping[str, Mapping[str, Any]]

    def distance(self, experiment: Experiment) -> float:
        """How far an experiment is from this: what knowledge can travel counts most, then who has which classes."""
        data = experiment.data
        iid: bool = data.partition["name"] == "iid"
        return (
            4 * (self.public != (data.public is not None))
            + 2 * ((self.partition == "iid") != iid)
            + (self.data != data.name)
            + 0.5 * abs(math.log2(self.clients / data.clients))
        )

    def __str__(self) -> str:
        samples = "" if self.train is None else f"{self.train:,} samples of "
        public = ", public samples" if self.public else ""
        return f"{samples}{self.data}, {self.clients} clients, {self.partition}{public} ({self.study})"


@dataclass(frozen=True)
class Advised:
    """A method: its plan, and how it did; or why it does not suit."""

    method: str
    plan: Plan | None = None
    why_not: str = ""
    setting: Setting | None = None  # the nearest in which it was compared with others
    accuracy: float | None = None  # of its best row there
    seeds: int = 0
    row: str = ""  # the label of that row, whose settings may differ from the experiment's

    @property
    def fits(self) -> bool:
        """Whether the world allows it and the devices can do it."""
        return not self.why_not


@dataclass(frozen=True)
class Advice:
    """Methods that fit, best first, then those that do not."""

    setting: Setting | None  # that the first methods are ranked in
    methods: tuple[Advised, ...]

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "setting": None if self.setting is None else str(self.setting),
            "methods": [
                {
                    "method": one.method,
                    "fits": one.fits,
                    "why_not": one.why_not,
                    "setting": None if one.setting is None else str(one.setting),
                    "accuracy": one.accuracy,
                    "seeds": one.seeds,
                    "row": one.row,
                    "plan": None if one.plan is None else one.plan.as_json(),
                }
                for one in self.methods
            ],
        }


@cache
def settings() -> tuple[Setting, ...]:
    """All settings in which methods were compared."""
    return tuple(Setting(**table) for table in json.loads(FOUND.read_text(encoding="utf-8")))


def advise(experiment: Experiment, seconds: float = SECONDS) -> Advice:
    """Plan every method in the world of an experiment, and rank those that fit."""
    tried = [_tried(experiment, name, seconds) for name in _names(experiment)]
    fitting = {one.method for one in tried if one.fits}
    chosen = nearest(experiment, fitting, least=2)
    ranked = [_found(one, experiment, chosen) if one.fits else one for one in tried]

    def rank(one: Advised) -> tuple[bool, bool, float, str, float]:
        far, study = (one.setting.distance(experiment), one.setting.study) if one.setting else (math.inf, "")
        return not one.fits, one.setting is not chosen, far, study, -(one.accuracy or 0)

    return Advice(chosen, tuple(sorted(ranked, key=rank)))


def nearest(experiment: Experiment, methods: Iterable[str], least: int = 0) -> Setting | None:
    """The nearest setting of this task that has at least as many of these methods, baselines not counted.

    Of equally near ones that with most of them.
    """
    wanted = set(methods)
    boxes = experiment.data.name in WITH_BOXES
    near = [
        setting
        for setting in settings()
        if setting.boxes == boxes
        and (shared := wanted & setting.methods.keys())
        and len(shared - {*BASELINES}) >= least
    ]
    return min(near, key=lambda one: (one.distance(experiment), -len(wanted & one.methods.keys())), default=None)


def _names(experiment: Experiment) -> list[str]:
    return list(dict.fromkeys([experiment.method["name"], *METHODS]))


def with_method(experiment: Experiment, name: str) -> Experiment:
    """The experiment with another method at its defaults, and models as it is meant for.

    The method of the experiment keeps its options.

    Settings that only the experiment's method understands are left behind: its own defaults, and codec rules for what
    the other does not send.
    """
    if name == experiment.method["name"]:
        return experiment
    other = dataclasses.replace(experiment, method={"name": name})
    sends = type(other.build_method())
    codecs = tuple(rule for rule in experiment.wire.codecs if is_about(parse_rule(rule), sends))
    evaluation, models = experiment.evaluation, experiment.models
    if evaluation.average == experiment.build_method().moving_average:
        evaluation = dataclasses.replace(evaluation, average=None)
    if models.server in (None, experiment.default_server()):
        models = dataclasses.replace(models, server=other.default_server())
    begin, form = sends.client_form.partition("{")[0], sends.client_form
    if isinstance(models.client, str) and not models.client.startswith(begin):
        models = dataclasses.replace(models, client=form.format(models.client))
    wire = dataclasses.replace(experiment.wire, codecs=codecs)
    return dataclasses.replace(other, evaluation=evaluation, models=models, wire=wire)


def _tried(experiment: Experiment, name: str, seconds: float) -> Advised:
    try:
        made = plan(with_method(experiment, name), seconds=seconds, measure=False)
    except CatchmentError as error:
        return Advised(name, why_not=str(error))
    problems = (f"{kind.profile}: {why}" for kind in made.devices for why in kind.problems)
    return Advised(name, made, next(problems, ""))


def _found(one: Advised, experiment: Experiment, chosen: Setting | None) -> Advised:
    setting = chosen if chosen and one.method in chosen.methods else nearest(experiment, [one.method])
    if setting is None:
        return one
    found = setting.methods[one.method]
    return dataclasses.replace(one, setting=setting, accuracy=found["accuracy"], seeds=found["seeds"], row=found["row"])
