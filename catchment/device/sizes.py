"""How large the models of an experiment are, found before they take memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from catchment import models
from catchment.config.experiment import Experiment
from catchment.data.samples import Form
from catchment.device.policy import Refusal
from catchment.errors import CatchmentError

MOST_TENSORS = 2_000  # parameters of one model by name: more take long to make, however small they are


class Sizes(NamedTuple):
    """Of the models that a device builds, by name."""

    parameters: dict[str, int]
    features: dict[str, int]  # numbers that one sample's features have


def model_sizes(experiment: Experiment, form: Form, most: float) -> Sizes:
    """Build every model without memory; one with more than `most` parameters is refused as soon as that is seen."""
    method, settings = experiment.build_method(), experiment.models
    names = (settings.client,) if isinstance(settings.client, str) else settings.client
    found = Sizes({}, {})
    features: tuple[int, ...] | None = None
    for name in dict.fromkeys(names):
        model = _built(name, form.shape, len(form.classes), most)
        found.parameters[name] = models.parameters(model)
        if models.is_split(model):
            features = models.feature_shape(model, form.shape)
            found.features[name] = torch.Size(features).numel()
    if settings.server is not None:
        half = models.is_half(settings.server) or (":" in settings.server and method.takes_features)
        shape = features if half and features is not None else form.shape
        found.parameters[settings.server] = models.parameters(_built(settings.server, shape, len(form.classes), most))
    return found


def _built(name: str, shape: tuple[int, ...], classes: int, most: float) -> nn.Module:
    """A model on PyTorch's "meta" device, which holds no numbers; a user's own code may not support that."""
    with _counted(name, most), torch.device("cpu" if ":" in name else "meta"):
        return models.build(name, shape, classes, seed=0)


@contextmanager
def _counted(name: str, most: float) -> Iterator[None]:
    """Stop building a model as soon as it has too many parameters."""
    tensors = parameters = 0

    def count(module: nn.Module, label: str, parameter: nn.Parameter | None) -> None:
        nonlocal tensors, parameters
        if parameter is not None:
            tensors, parameters = tensors + 1, parameters + parameter.numel()
            if tensors > MOST_TENSORS or parameters > most:
                raise Refusal(
                    f'model "{name}" has at least {parameters:,} parameters in {tensors:,} tensors; limits.parameters '
                    f"is {most:,.0f}, in at most {MOST_TENSORS:,} tensors",
                    "the model is larger than the device allows",
                )

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    except Refusal:
        raise
    except CatchmentError as error:
        raise Refusal(str(error), "the model cannot be built on this device") from None
    finally:
        hook.remove()
