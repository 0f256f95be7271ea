"""An exponential moving average of weights, for evaluation and export; training never sees it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from catchment.learning.training import Weights, copy_weights, load_weights, tensors_of

ROW_MAJOR = torch.contiguous_format
STEPS = "(steps)"  # the count among the tensors of an average


@dataclass
class MovingAverage:
    """The average of one model; numbers that are not floating-point, such as counts of batches, are the newest."""

    weights: Weights  # row-major, whatever the order of the model's: kernels of another order round differently
    steps: int = 0  # that it has followed

    @staticmethod
    def starting_at(weights: Mapping[str, Tensor]) -> MovingAverage:
        """An average that begins with these weights, which stay untouched."""
        copies = {name: tensor.detach().clone(memory_format=ROW_MAJOR) for name, tensor in weights.items()}
        return MovingAverage(copies)

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> MovingAverage:
        """What `tensors` gave, as a copy."""
        average = MovingAverage.starting_at({name: tensor for name, tensor in tensors.items() if name != STEPS})
        average.steps = int(tensors[STEPS])
        return average

    def tensors(self) -> Weights:
        """The average as named tensors that can be kept, sent and checkpointed."""
        return {**self.weights, STEPS: torch.tensor(self.steps)}

    @torch.no_grad()
    def follow(self, weights: Mapping[str, Tensor], decay: float) -> None:
        """Take in the weights after a step. The first steps count for more, so that the first weights are forgotten."""
        kept = min(decay, (1 + self.steps) / (10 + self.steps))
        for name, new in weights.items():
            old = self.weights[name] = self.weights[name].to(new.device)
            if new.is_floating_point():
                old.lerp_(new, 1 - kept)
            else:
                old.copy_(new)
        self.steps += 1


@dataclass
class StateAverages:
    """The averages of all models in a server's state.

    A module that is trained in place counts every step of its optimiser; one that made no step in a round, and weights
    that are replaced by aggregation, count rounds.
    """

    decay: float
    fields: tuple[str, ...]  # of the state: modules, weights, or dicts of either
    averages: dict[str, MovingAverage] = field(default_factory=dict)  # by place, such as "model" or "weights/3"
    stepped: dict[str, bool] = field(default_factory=dict)  # places that made a step in the current round

    def tensors(self) -> dict[str, Weights]:
        """All averages as tensors that a checkpoint can hold."""
        return {place: average.tensors() for place, average in self.averages.items()}

    def load(self, tensors: Mapping[str, Weights]) -> None:
        """Put back what `tensors` gave."""
        self.averages = {place: MovingAverage.from_tensors(own) for place, own in tensors.items()}

    def watch(self, state: Any) -> None:
        """Start with the models of a state, and follow every step of its optimisers from now on."""
        found = dict(_models(state, self.fields))
        for place, model in found.items():
            self.averages.setdefault(place, MovingAverage.starting_at(_tensors(model)))
        for optimizer in _optimizers(state):
            held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            for place, model in found.items():
                if isinstance(model, nn.Module) and any(id(parameter) in held for parameter in model.parameters()):
                    optimizer.register_step_post_hook(self._follower(place, model))

    def end_round(self, state: Any) -> None:
        """Count a round for what made no step of its own."""
        for place, model in _models(state, self.fields):
            if place not in self.averages:
                self.averages[place] = MovingAverage.starting_at(_tensors(model))
            elif place not in self.stepped:
                self.averages[place].follow(_tensors(model), self.decay)
        self.stepped = {}

    @contextmanager
    def swapped_in(self, state: Any) -> Iterator[None]:
        """The state with averages in place of its models, until the block ends."""
        modules = {place: model for place, model in _models(state, self.fields) if isinstance(model, nn.Module)}
        before = {place: copy_weights(module) for place, module in modules.items()}
        values = {name: getattr(state, name) for name in self.fields}
        self.put_in(state)
        try:
            yield
        finally:
            for name, value in values.items():
                setattr(state, name, value)
            for place, module in modules.items():
                load_weights(tensors_of(module), before[place], place)

    def put_in(self, state: Any) -> None:
        """Replace the models of a state by their averages, for good."""
        for name in self.fields:
            setattr(state, name, self._averaged(getattr(state, name), name))

    def _averaged(self, value: Any, place: str) -> Any:
        average = self.averages.get(place)
        if isinstance(value, nn.Module):
            if average is not None:
                load_weights(tensors_of(value), average.weights, place)
            return value
        if isinstance(value, dict) and average is None:
            return {key: self._averaged(item, f"{place}/{key}") for key, item in value.items()}
        return value if average is None else average.weights

    def _follower(self, place: str, module: nn.Module) -> Any:
        def follow(optimizer: torch.optim.Optimizer, arguments: object, keywords: object) -> None:
            self.averages[place].follow(tensors_of(module), self.decay)
            self.stepped[place] = True

        return follow


def _tensors(model: nn.Module | Weights) -> Weights:
    return tensors_of(model) if isinstance(model, nn.Module) else model


def _models(state: Any, fields: Sequence[str]) -> Iterator[tuple[str, nn.Module | Weights]]:
    """The models of a state by place."""

    def inner(value: Any, place: str) -> Iterator[tuple[str, nn.Module | Weights]]:
        if isinstance(value, nn.Module) or _are_weights(value):
            yield place, value
        elif isinstance(value, dict):
            for key, item in value.items():
                yield from inner(item, f"{place}/{key}")

    for name in fields:
        yield from inner(getattr(state, name), name)


def _are_weights(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(item, Tensor) for item in value.values())


def _optimizers(value: Any) -> Iterator[torch.optim.Optimizer]:
    """The optimisers of a state."""
    if isinstance(value, torch.optim.Optimizer):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _optimizers(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for entry in dataclasses.fields(value):
            yield from _optimizers(getattr(value, entry.name))
