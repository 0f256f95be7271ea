"""Convolutions of a few base kernels that generate the others.

Li et al., Representative Kernels-based CNN for Faster Transmission in Federated Learning (Fed-KGF). A convolution of n
kernels keeps m base kernels w as its only weights; the other n - m are copies of them put through

    w' = sign(w) (|w|^beta + alpha)        (equation 2)

with random numbers alpha and beta that belong to the architecture: they are drawn from a fixed seed and the name of the
layer, so that everybody who builds the model has the same ones, and neither travel nor are saved. Generated kernels
exist while a batch passes; gradients reach the base kernels through them.

The paper can be read in two ways twice. "With range from 0.00001 to 0.1": alpha is uniform there, with a mean of
0.05, or, with `decades`, its logarithm is, as Proposition 2's example has 0.002, 0.0001, 0.08 and 0.00001. And alpha
and beta are drawn once, or, with `redraw`, anew whenever the number in a layer's buffer `draw` changes, which does
travel.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from catchment.errors import ModelError
from catchment.randomness import torch_generator

BASE_KERNELS = 16  # m
ALPHA = (1e-5, 1e-1)
BETA = (2.0, 10.0)
SMALLEST = 1e-30  # its square is 0, as is that of anything smaller, and its logarithm is finite


class KernelGeneration(nn.Conv2d):
    """A convolution whose weights are base kernels alone: the first ones of an ordinary convolution."""

    alpha: Tensor  # [n - m, c, height, width]
    beta: Tensor  # [n - m, c, height, width]
    draw: Tensor | None  # whole number, with `redraw`: which alpha and beta

    def __init__(
        self,
        whole: nn.Conv2d,
        base: int,
        seed: int,
        name: str,
        sign: bool = True,
        bias: bool = True,
        decades: bool = False,
        redraw: bool = False,
    ) -> None:
        height, width = whole.kernel_size
        super().__init__(
            whole.in_channels, whole.out_channels, (height, width), whole.stride, whole.padding, whole.dilation,  # type: ignore[arg-type]
            whole.groups, whole.bias is not None, whole.padding_mode, device="meta",
        )  # fmt: skip
        self.weight = nn.Parameter(whole.weight.detach()[:base].clone())
        self.bias = whole.bias
        self.sign, self.offset = sign, bias
        self._shape = (whole.out_channels - base, *whole.weight.shape[1:])
        self._seed, self._layer, self._decades, self._drawn = seed, name, decades, 0
        for tensor, drawn in zip(("alpha", "beta"), self._random(0)):
            self.register_buffer(tensor, drawn.to(self.weight.device), persistent=False)
        self.register_buffer("draw", torch.tensor(0) if redraw else None)

    def _random(self, draw: int) -> tuple[Tensor, Tensor]:
        """Alpha and beta of a draw."""
        generator = torch_generator(self._seed, "kgf", self._layer, *([draw] if draw else []))
        shares = [torch.rand(self._shape, generator=generator) for _ in ("alpha", "beta")]
        low, high = ALPHA
        alpha = low * (shares[0] * math.log(high / low)).exp() if self._decades else low + (high - low) * shares[0]
        return alpha, BETA[0] + (BETA[1] - BETA[0]) * shares[1]

    def kernels(self) -> Tensor:
        """All n kernels: the base kernels, and those that they generate."""
        if self.draw is not None and not torch.compiler.is_compiling() and self._drawn != int(self.draw):
            self._drawn = int(self.draw)
            for tensor, drawn in zip((self.alpha, self.beta), self._random(self._drawn)):
                tensor.copy_(drawn)
        w = self.weight
        copies = -(-len(self.alpha) // len(w))
        log = w.abs().clamp_min(SMALLEST).log().repeat(copies, 1, 1, 1)[: len(self.alpha)]
        generated = (self.beta * log).exp()  # |w|^beta, in half the time of a power
        if self.offset:
            generated = generated + self.alpha
        if self.sign:
            generated = w.sign().repeat(copies, 1, 1, 1)[: len(self.alpha)] * generated
        return torch.cat([w, generated])

    def forward(self, maps: Tensor) -> Tensor:
        """Maps `[N, c, H, W]` to `[N, n, H', W']`."""
        output: Tensor = self._conv_forward(maps, self.kernels(), self.bias)
        return output

    def extra_repr(self) -> str:
        """As a convolution, with the number of base kernels."""
        return f"{super().extra_repr()}, base={len(self.weight)}"  # type: ignore[no-untyped-call]


def with_base_kernels(
    model: nn.Module,
    base: int = BASE_KERNELS,
    *,
    sign: bool = True,
    bias: bool = True,
    decades: bool = False,
    redraw: bool = False,
    seed: int = 0,
) -> nn.Module:
    """The model, changed: every `nn.Conv2d` of more than `base` kernels keeps that many and generates the others.

    Without `sign` or `bias`, equation 2 lacks that part. All else stays as it is, subclasses of `nn.Conv2d` included.
    """
    if base < 1:
        raise ModelError(f"{base} base kernels are given; at least 1 is needed")
    made: dict[nn.Module, nn.Module] = {}  # a layer that stands in two places stays one
    for name, part in list(model.named_modules()):
        if type(part) is nn.Conv2d and part.out_channels > base:
            made[part] = KernelGeneration(part, base, seed, name, sign, bias, decades, redraw)
    if not made:
        raise ModelError(
            f"there is nothing to generate: the model has no convolution (nn.Conv2d) of more than {base} kernels; give "
            "fewer base kernels, or another model"
        )
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):  # named_children names a layer once
            if child in made:
                setattr(parent, name, made[child])
    return made.get(model, model)
