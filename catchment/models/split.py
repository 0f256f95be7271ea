"""Models in two parts, and checks of a model before it is trained."""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.func import functional_call

from catchment.errors import ModelError


class SplitModel(nn.Module):
    """An extractor, from images to features, followed by a classifier, from features to logits."""

    def __init__(self, extractor: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.extractor = extractor
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        """The logits `[N, classes]` of images `[N, channels, height, width]`."""
        logits: Tensor = self.classifier(self.extractor(images))
        return logits


def is_split(model: nn.Module) -> TypeGuard[SplitModel]:
    """Whether the model has both parts; a user's own module with these two attributes counts as well."""
    parts = (getattr(model, "extractor", None), getattr(model, "classifier", None))
    return all(isinstance(part, nn.Module) for part in parts)


def feature_shape(model: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the features of one image of this shape; the model is left exactly as it was."""
    name = type(model).__name__
    return tuple(_features(_split(model, name), name, shape).shape[1:])


def check_pair(
    edge: nn.Module,
    half: nn.Module,
    shape: tuple[int, ...],
    classes: int,
    edge_name: str,
    half_name: str,
) -> None:
    """Raise a ModelError unless `half` can finish what the extractor of `edge` begins on such images."""
    split_edge = _split(edge, edge_name)
    features = _features(split_edge, edge_name, shape)
    made = f'"{edge_name}" turns images of {written(shape)} into features of {written(features.shape[1:])}'
    for model, name in ((split_edge.classifier, edge_name), (half, half_name)):
        try:
            logits = _output(model, features)
        except Exception as error:
            raise ModelError(
                f'models "{edge_name}" and "{half_name}" do not fit: {made}, '
                f'but "{name}" {_objection(model, features, error)}'
            ) from error
        if logits.shape != (1, classes):
            raise ModelError(
                f'models "{edge_name}" and "{half_name}" do not fit: {made}, and "{name}" turns these into '
                f"an output of shape {tuple(logits.shape)}, but {classes} classes need {(1, classes)}"
            )


def parameters(model: nn.Module) -> int:
    """The number of trainable parameters."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def written(shape: tuple[int, ...]) -> str:
    """A shape as people write it: 3x32x32."""
    return "x".join(map(str, shape))


def _split(model: nn.Module, name: str) -> SplitModel:
    """The model, checked to have both parts."""
    if not is_split(model):
        raise ModelError(
            f'model "{name}" has no extractor for features: let its function return '
            "catchment.models.SplitModel(extractor, classifier), or a module with these two attributes"
        )
    return model


def _features(model: SplitModel, name: str, shape: tuple[int, ...]) -> Tensor:
    """The features `[1, ...]` of a black image."""
    image = next(model.parameters(), torch.empty(0)).new_zeros(1, *shape)  # on the model's device
    try:
        return _output(model.extractor, image)
    except Exception as error:
        raise ModelError(
            f'the extractor of model "{name}" cannot take images of {written(shape)}: {type(error).__name__}: {error}'
        ) from error


def _output(module: nn.Module, batch: Tensor) -> Tensor:
    """What the module makes of a batch in evaluation mode; its modes and its buffers stay as they are."""
    modes = {part: part.training for part in module.modules()}
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    module.eval()
    try:
        with torch.no_grad():
            output = functional_call(module, buffers, batch)
    finally:
        for part, mode in modes.items():
            part.training = mode
    if not isinstance(output, Tensor):
        raise TypeError(f"the output should be one tensor, not an object of type {type(output).__name__}")
    return output


def _objection(model: nn.Module, features: Tensor, error: Exception) -> str:
    """Why the model failed on the features: by its first convolution if that explains it, else as it said."""
    first = next((part for part in model.modules() if isinstance(part, nn.Conv2d)), None)
    if first is not None and features.shape[1:2] != (first.in_channels,):
        return f"takes maps of {first.in_channels} channels"
    return f"cannot take them: {type(error).__name__}: {error}"
