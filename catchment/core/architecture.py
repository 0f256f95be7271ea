"""Models that both sides can build: their first weights, and facts from a trial pass."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from catchment import models
from catchment.errors import CatchmentError, ModelError
from catchment.learning.precision import Precision, in_precision
from catchment.learning.training import Weights, copy_weights, load_weights, tensors_of
from catchment.randomness import seeded_globals

_FINDING = threading.Lock()


@dataclass(frozen=True)
class Architecture:
    """A model that can be built anywhere, always with the same first weights."""

    name: str
    shape: tuple[int, int, int]  # of the input: channels, height, width
    classes: int
    seed: int  # of the first weights that all share
    device: torch.device
    initial: str = "own"  # how first weights are drawn: as the model does, or "glorot"
    precision: Precision = "float32"
    pretrained: Mapping[str, Tensor] = field(default_factory=dict, compare=False, repr=False)  # replace first weights

    def build(self) -> nn.Module:
        """A new module on the compute device, with the first weights."""
        module = self._drawn(self.seed)
        in_precision(module, self.precision, self.device)
        if len(self.shape) == 3 and any(isinstance(part, nn.Conv2d) for part in module.modules()):
            return module.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
        return module.to(self.device)

    @property
    def description(self) -> dict[str, Any]:
        """What another process needs to build the same model, whose weights it is then given."""
        names = ("name", "shape", "classes", "initial", "precision")
        return {name: getattr(self, name) for name in names} | {"device": str(self.device)}

    @staticmethod
    def described(description: Mapping[str, Any], device: torch.device) -> Architecture:
        """The inverse of `description`, on a device of this process."""
        given = {**description, "shape": tuple(description["shape"]), "device": device}
        return Architecture(**given, seed=0)

    def first_weights(self, seed: int) -> Weights:
        """First weights that are drawn with another seed, on the CPU."""
        return copy_weights(self._drawn(seed))

    @cached_property
    def fitting(self) -> Weights:
        """The pretrained tensors that fit this model, by its names."""
        return models.fitting(self.facts.initial, self.pretrained, half=models.is_half(self.name))

    @cached_property
    def facts(self) -> ModelFacts:
        """Facts from a trial pass of the model; found once."""
        with _FINDING:
            return self.__dict__.get("facts") or _facts(self)

    def _drawn(self, seed: int) -> nn.Module:
        """A new module on the CPU."""
        module = models.build(self.name, self.shape, self.classes, seed, self.initial)
        if self.pretrained:
            tensors = tensors_of(module)
            given = models.fitting(tensors, self.pretrained, half=models.is_half(self.name))
            load_weights(tensors, {**tensors, **given}, self.name)
        return module


@dataclass(frozen=True)
class ModelFacts:
    """Facts about an architecture, found on the CPU."""

    initial: Weights  # that all share
    buffers: frozenset[str]  # the names in `initial` that are no parameters
    parameters: int
    macs: Mapping[str, int]  # of one sample's forward pass, by child ("" = the whole module) whose calls are counted
    draws: bool  # uses PyTorch's global generator in training (dropout), so only one may run at a time
    outputs: tuple[int, ...]  # shape of what it makes of two samples
    spatial: bool  # has 2-d convolutions, which are faster on channels-last images
    features: tuple[int, ...] | None = None  # shape of the features of one sample, if the model has an extractor

    @property
    def total_macs(self) -> int:
        """Multiply-accumulates of one whole forward pass for one sample."""
        return sum(self.macs.values())


def _facts(architecture: Architecture) -> ModelFacts:
    module = architecture._drawn(architecture.seed)
    initial, shape = copy_weights(module), architecture.shape
    try:
        if models.is_split(module):
            features = models.feature_shape(module, shape)
            counts = {"extractor": macs(module.extractor, shape), "classifier": macs(module.classifier, features)}
        else:
            features, counts = None, {"": macs(module, shape)}
        with seeded_globals(0), torch.no_grad():
            before = torch.get_rng_state()
            module.train()
            outputs = module(torch.zeros(2, *shape))
            draws = not torch.equal(before, torch.get_rng_state())
    except CatchmentError:
        raise
    except Exception as error:
        raise ModelError(
            f'model "{architecture.name}" cannot take input of shape {list(shape)}: {type(error).__name__}: {error}'
        ) from error
    spatial = any(isinstance(part, nn.Conv2d) for part in module.modules())
    shape_of_outputs = tuple(getattr(outputs, "shape", ()))
    buffers = frozenset(initial) - {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return ModelFacts(initial, buffers, models.parameters(module), counts, draws, shape_of_outputs, spatial, features)


def macs(module: nn.Module, shape: Sequence[int]) -> int:
    """Multiply-accumulates of one forward pass for one sample of this shape."""
    training = module.training
    module.eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(torch.zeros(1, *shape, device=next(module.parameters(), torch.empty(0)).device))
    module.train(training)
    return int(counter.get_total_flops()) // 2  # the counter books a multiply and an add as two
