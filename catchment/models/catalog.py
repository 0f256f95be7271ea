"""The built-in models by name, and the user's own."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn
from torch.nn.parameter import UninitializedParameter

from catchment.errors import CatchmentError, ModelError
from catchment.models import mobile, resnet, resnet18, small, yolox
from catchment.models.initial import glorot
from catchment.models.kgf import BASE_KERNELS, with_base_kernels
from catchment.models.split import written
from catchment.names import call_with_known, resolve
from catchment.randomness import seeded_globals


@dataclass(frozen=True)
class Builtin:
    """How to make a model, and the smallest height and width it is made for."""

    make: Callable[[tuple[int, ...], int], nn.Module]
    smallest: int
    half: bool = False  # takes features, not images


@dataclass(frozen=True)
class Family:
    """Models that differ in the numbers in parentheses after their name."""

    form: str
    numbers: str  # what they are
    member: Callable[..., Builtin]
    widths: tuple[float, ...] = ()  # the numbers there are; any positive whole ones if none are given
    most: int = 0  # of the last number, which may then be left out; 0: all are needed


def _edge(blocks: int) -> Builtin:
    return Builtin(partial(resnet.basic_edge, blocks), smallest=1)


def _cut_edge(make: Callable[..., nn.Module], *blocks: int) -> Callable[..., Builtin]:
    """Members of a family of edge models by what their features are: channels, stride, and depth of the cut."""
    names = ("channels", "stride", "depth")
    return lambda *numbers: Builtin(partial(make, *blocks, **dict(zip(names, numbers))), smallest=1)


def _whole(*blocks: int) -> Builtin:
    return Builtin(partial(resnet.whole, blocks), smallest=4)  # halved twice


def _half(*blocks: int) -> Builtin:
    return Builtin(partial(resnet.half, blocks), smallest=4, half=True)


def _basic(channels: int, blocks: int) -> Builtin:
    return Builtin(partial(resnet18.basic, channels, blocks), smallest=8)  # halved three times


def _mlp(hidden: int) -> Builtin:
    return Builtin(partial(small.mlp, hidden), smallest=1)


def _cnn(channels: int) -> Builtin:
    return Builtin(partial(small.cnn, channels), smallest=4)


def _lenet(first: int, second: int, linear: int) -> Builtin:
    return Builtin(partial(small.lenet, first, second, linear), smallest=16)


def _shufflenetv2(size: float) -> Builtin:
    return Builtin(partial(mobile.shufflenetv2, size), smallest=8)  # halved three times


def _mobilenetv2(width: float) -> Builtin:
    return Builtin(partial(mobile.mobilenetv2, width), smallest=8)  # halved three times


_SINGLE = {
    "mlp": _mlp(64),
    "cnn": _cnn(16),
    "lenet": _lenet(6, 16, 3),
    "resnet4": _edge(1),
    "resnet6": _edge(2),
    "resnet8": Builtin(resnet.bottleneck_edge, smallest=1),
    "resnet8_basic": _edge(3),
    "resnet11": _whole(1, 1, 1),
    "resnet20": _whole(2, 2, 2),
    "resnet38": _whole(4, 4, 4),
    "resnet56": _whole(6, 6, 6),
    "resnet110": _whole(12, 12, 12),
    "resnet10": _half(1, 1, 1),
    "resnet19": _half(2, 2, 2),
    "resnet37": _half(4, 4, 4),
    "resnet55": _half(6, 6, 6),
    "resnet109": _half(12, 12, 12),
    "resnet18": _basic(64, 2),
    **{f"yolox_{size}": Builtin(partial(yolox.yolox, size), smallest=32) for size in yolox.SIZES},
}

_EDGE = "features of c channels, a stride of s in the stem, d residual blocks in the extractor (none if left out)"

_FAMILIES = {
    "mlp": Family("mlp(h)", "h hidden units", _mlp),
    "cnn": Family("cnn(c)", "two convolutions, of c and 2 c channels", _cnn),
    "lenet": Family("lenet(a,b,n)", "two convolutions, of a and b channels, and n linear layers", _lenet),
    "shufflenetv2": Family(
        "shufflenetv2(w)", "w times the width of ShuffleNetV2 1x", _shufflenetv2, tuple(mobile.SHUFFLE_CHANNELS)
    ),
    "mobilenetv2": Family("mobilenetv2(w)", "w times the width of MobileNetV2", _mobilenetv2, mobile.MOBILE_WIDTHS),
    "resnet4": Family("resnet4(c,s,d)", _EDGE, _cut_edge(resnet.basic_edge, 1), most=1),
    "resnet6": Family("resnet6(c,s,d)", _EDGE, _cut_edge(resnet.basic_edge, 2), most=2),
    "resnet8": Family("resnet8(c,s,d)", _EDGE, _cut_edge(resnet.bottleneck_edge), most=2),
    "resnet": Family("resnet(a,b,c)", "a whole ResNet with a, b and c bottleneck blocks in its three stages", _whole),
    "half": Family("half(a,b,c)", "the server half of resnet(a,b,c), takes features", _half),
    "basic": Family(
        "basic(w,b)", "four stages of b basic blocks, the first of w channels; resnet18 is basic(64,2)", _basic
    ),
}

_KNOWN: dict[str, Builtin | Family] = {**_SINGLE, **{family.form: family for family in _FAMILIES.values()}}

KGF = "kgf(model)"  # not a family: any model can stand in it

MODELS = (*_KNOWN, KGF)

FORMS = {
    **{family.form: family.numbers for family in _FAMILIES.values()},
    KGF: "any model, with few base kernels in its convolutions: kgf(resnet18), or kgf(resnet18,8,no-sign,no-bias)",
}
"""What stands in the parentheses of a name."""


def build(name: str, shape: tuple[int, ...], classes: int, seed: int, initial: str = "own") -> nn.Module:
    """A fresh model for inputs of this shape; the same seed gives the same weights.

    The name is a built-in (`resnet8`), a member of a family (`resnet(1,1,2)`, `resnet8(8,2)`), or the user's own
    `module:function`, which is called with those of `shape`, `channels`, `size` (the width) and `classes`
    that it names. The shape for a half is that of the features it takes. `kgf(resnet18)`, `kgf(resnet18,8)` or
    `kgf(resnet18,16,no-sign)` is any of these with base kernels in its convolutions (`catchment.models.kgf`); other
    switches are `no-bias`, `decades` and `redraw`.
    `initial = "glorot"` redraws the weights of linear and convolutional layers, after Glorot and Bengio.
    """
    if (generated := _generating(name)) is not None:
        inner, base, switches = generated
        return with_base_kernels(build(inner, shape, classes, seed, initial), base, **switches)
    if not shape or min(shape) < 1 or classes < 1:
        raise ModelError(
            f'model "{name}" needs a shape of positive numbers and at least one class, '
            f"not the shape {shape} and {classes} classes"
        )
    make = _maker(name, shape, classes)
    with seeded_globals(seed):
        try:
            model = make()
        except CatchmentError:
            raise
        except Exception as error:
            raise ModelError(
                f'model "{name}" could not be built for {written(shape)} and {classes} classes: '
                f"{type(error).__name__}: {error}"
            ) from error
    if not isinstance(model, nn.Module):
        raise ModelError(
            f'model "{name}" should return a torch.nn.Module, but returned an object of type {type(model).__name__}'
        )
    if any(isinstance(parameter, UninitializedParameter) for parameter in model.parameters()):
        raise ModelError(f'model "{name}" has lazy layers, whose weights no seed can fix: give their sizes')
    if initial == "glorot":
        with seeded_globals(seed):
            glorot(model)
    return model


def is_half(name: str) -> bool:
    """Whether a name means a built-in that takes features instead of images."""
    generated = _generating(name)
    builtin = _builtin(generated[0] if generated else name)
    return builtin is not None and builtin.half


_SWITCHES = {
    "no-sign": ("sign", False),
    "no-bias": ("bias", False),
    "decades": ("decades", True),
    "redraw": ("redraw", True),
}


def _generating(name: str) -> tuple[str, int, dict[str, bool]] | None:
    """The model that a name `kgf(...)` is made from, its number of base kernels, and the switches that are turned."""
    parts = re.fullmatch(r"\s*kgf\s*\((.*)\)\s*", name)
    if parts is None:
        return None
    inner, *options = (part.strip() for part in re.split(r",(?![^()]*\))", parts[1]))
    base, switches = BASE_KERNELS, {}
    for option in options:
        if option.isdecimal() and int(option) > 0:
            base = int(option)
        elif option in _SWITCHES:
            switch, switches[switch] = _SWITCHES[option]
        else:
            raise ModelError(
                f'model "{name}" has "{option}" after the name of a model; a number of base kernels, no-sign, '
                "no-bias, decades or redraw is expected"
            )
    if "decades" in switches and "bias" in switches:
        raise ModelError(
            f'model "{name}" has decades, which says how alpha is drawn, and no-bias, which leaves alpha out; drop one '
            "of them"
        )
    if not inner or _generating(inner) is not None:
        raise ModelError(f'model "{name}" should have the form "kgf(NAME)" or "kgf(NAME,16)", with an ordinary model')
    return inner, base, switches


def _maker(name: str, shape: tuple[int, ...], classes: int) -> Callable[[], Any]:
    """A function that makes the named model, once it is known to suit the shape."""
    builtin = _builtin(name)
    if builtin is not None:
        _check_shape(name, builtin, shape)
        return partial(builtin.make, shape, classes)
    function = resolve("model", name.strip(), _KNOWN)
    if isinstance(function, nn.Module) or not callable(function):
        raise ModelError(
            f'model "{name}" should be a function or class that makes a torch.nn.Module, '
            f"but is an object of type {type(function).__name__}"
        )
    return partial(call_with_known, function, shape=shape, channels=shape[0], size=shape[-1], classes=classes)


def _builtin(name: str) -> Builtin | None:
    """The built-in of this name, or none."""
    if name.strip() in _SINGLE:
        return _SINGLE[name.strip()]
    parts = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", name)
    if parts is None or parts[1] not in _FAMILIES:
        return None
    family = _FAMILIES[parts[1]]
    numbers = [number.strip() for number in (parts[2] or "").split(",")]
    if family.widths:
        width = next((width for width in family.widths if numbers in ([f"{width:g}"], [f"{width}"])), None)
        if width is None:
            raise ModelError(f'model "{name}" should be "{family.form}" with w one of {family.widths}')
        return family.member(width)
    count = len(family.form.split(","))
    fewest = count - 1 if family.most else count
    positive = all(number.isdecimal() and int(number) > 0 for number in numbers)
    if (
        not positive
        or not fewest <= len(numbers) <= count
        or (len(numbers) > fewest and int(numbers[-1]) > family.most)
    ):
        last = f"; {family.form[-2]} is at most {family.most} and may be left out" if family.most else ""
        raise ModelError(
            f'model "{name}" should have the form "{family.form}" with positive whole numbers in the parentheses{last}'
        )
    return family.member(*map(int, numbers))


def _check_shape(name: str, builtin: Builtin, shape: tuple[int, ...]) -> None:
    """Raise a ModelError unless inputs of this shape are maps that are large enough."""
    kind = "features" if builtin.half else "images"
    if len(shape) != 3:
        raise ModelError(f'model "{name}" takes {kind} of channels x height x width, not of shape {written(shape)}')
    if min(shape[1:]) < builtin.smallest:
        least = written((builtin.smallest, builtin.smallest))
        raise ModelError(f'model "{name}" takes {kind} from {least} upward, not {written(shape[1:])}')
