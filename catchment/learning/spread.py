"""A model's training step on several processes: each takes a part of the batch. Knows nothing of federation.

Process 0 owns the model, the loss and the optimiser, as if it were alone; the others are lent its weights for a step.
Forward, they give the outputs of their rows; backward, gradients of weights are summed over all rows. Batch
normalisation takes its statistics over the whole batch, so that a step is that of one process, up to the rounding of
sums.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from catchment.errors import ProtocolError, RunError, printable
from catchment.learning.training import tensors_of

FEWEST = 2  # rows per process; a smaller batch is not shared

Order = Callable[[Mapping[str, Any]], None]  # tells the other processes what to do next


class Spread:
    """Called in place of a model: a training step's rows are shared with the other processes.

    These remember one forward pass, so that the backward pass must come before the next forward pass of any `Spread`.
    """

    latest: ClassVar[object] = None  # the forward pass that they remember

    def __init__(self, model: nn.Module, name: Mapping[str, Any], order: Order) -> None:
        """`name` is what the others build the same model from."""
        self.model = model
        self.name = name
        self.order = order
        self.parameters = _trained(model)

    def __call__(self, rows: Tensor) -> Tensor:
        """The model's output."""
        few = len(rows) < FEWEST * dist.get_world_size()
        if few or not (self.model.training and torch.is_grad_enabled()):
            return self.model(rows)  # type: ignore[no-any-return]
        return _Step.apply(self, rows, *self.parameters)  # type: ignore[no-any-return, no-untyped-call]


class _Step(torch.autograd.Function):
    """On process 0: outputs of all rows; gradients of all rows, and of the weights, summed over all rows."""

    @staticmethod
    def forward(ctx: Any, spread: Spread, rows: Tensor, *parameters: nn.Parameter) -> Tensor:
        """Lend the weights, hand out rows, compute the first part, collect the others."""
        own, *others = rows.tensor_split(dist.get_world_size())
        shapes = [list(part.shape) for part in others]
        with _all_or_none():
            spread.order({"forward": spread.name, "shapes": shapes, "of_rows": ctx.needs_input_grad[1]})
            dist.broadcast(_flat(_lent(spread.model)), 0)
            _hand_out(others)
            ctx.step = Spread.latest = object()
            ctx.part, ctx.order = _Part(spread.model, own, ctx.needs_input_grad[1]), spread.order
            return _gathered(ctx.part.output.detach(), others)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Hand out the gradients of the outputs, sum those of the weights, collect those of the rows."""
        if ctx.step is not Spread.latest:
            raise ProtocolError(
                "the processes that share a training step have gone on to another forward pass; call backward() first, "
                "or join both batches in one forward pass"
            )
        own, *others = gradient.tensor_split(dist.get_world_size())
        with _all_or_none():
            ctx.order({"backward": True})
            _hand_out(others)
            of_rows, of_weights = ctx.part.backward(own)
            return None, None if of_rows is None else _gathered(of_rows, others), *of_weights


@contextlib.contextmanager
def _all_or_none() -> Iterator[None]:
    """Around what all processes do at once: if one fails, the others wait for it in vain, so that the job must end."""
    try:
        yield
    except Exception as error:
        why = printable(f"{type(error).__name__}: {error}")
        raise RunError(
            f"the processes could not finish a training step that they share ({why}); with spread = false the first "
            "one trains alone"
        ) from error


class Assistant:
    """What another process does for a `Spread`."""

    def __init__(self, build: Callable[[Mapping[str, Any]], nn.Module]) -> None:
        """`build` makes the model of a name."""
        self._build = build
        self._models: dict[str, nn.Module] = {}
        self._part: _Part | None = None

    def forward(self, name: Mapping[str, Any], shapes: Sequence[Sequence[int]], of_rows: bool) -> None:
        """Take weights and rows, give outputs; process r has the r-th shape. The step before is over."""
        self._part = None
        if str(name) not in self._models:
            self._models[str(name)] = self._build(name)
        model = self._models[str(name)].train()
        tensors = _lent(model)
        flat = _flat(tensors)
        dist.broadcast(flat, 0)
        with torch.no_grad():
            for tensor, given in zip(tensors, flat.split_with_sizes([tensor.numel() for tensor in tensors])):
                tensor.copy_(given.view(tensor.shape))
        rows = flat.new_empty(*shapes[dist.get_rank() - 1])
        dist.recv(rows, 0)
        self._part = _Part(model, rows, of_rows)
        dist.send(self._part.output.detach().contiguous(), 0)

    def backward(self) -> None:
        """Take the gradient of the outputs, give those of the weights, and of the rows if they are wanted."""
        assert self._part is not None  # there was a forward pass
        gradient = torch.empty_like(self._part.output, memory_format=torch.contiguous_format)
        dist.recv(gradient, 0)
        of_rows, _ = self._part.backward(gradient)
        if of_rows is not None:
            dist.send(of_rows.contiguous(), 0)


class _Part:
    """The part of one process in a step: the outputs of its rows, then gradients."""

    def __init__(self, model: nn.Module, rows: Tensor, of_rows: bool) -> None:
        self._rows = rows.detach().requires_grad_(of_rows)
        self._parameters = _trained(model)
        with torch.enable_grad(), batch_wide(model):
            self.output: Tensor = model(self._rows)

    def backward(self, gradient: Tensor) -> tuple[Tensor | None, list[Tensor | None]]:
        """Of these rows, if it is wanted, which may be more than once; and of the weights over the rows of all.

        None stands for weights on which the output does not depend.
        """
        of_rows = self._rows.requires_grad
        wanted = [self._rows, *self._parameters] if of_rows else self._parameters
        found = torch.autograd.grad(self.output, wanted, gradient, retain_graph=of_rows, allow_unused=True)
        own, found = (found[0], found[1:]) if of_rows else (None, found)
        used = [one for one in found if one is not None]
        flat = _flat(used)
        dist.all_reduce(flat)
        sums = iter(flat.split_with_sizes([one.numel() for one in used]))
        return own, [None if one is None else next(sums).view(one.shape) for one in found]


def _hand_out(parts: Sequence[Tensor]) -> None:
    """From process 0 to the others."""
    for rank, part in enumerate(parts, 1):
        dist.send(part.contiguous(), rank)


def _gathered(own: Tensor, others: Sequence[Tensor]) -> Tensor:
    """To process 0 from the others, which have as many rows as these parts of theirs."""
    parts = [own]
    for rank, part in enumerate(others, 1):
        parts.append(own.new_empty(len(part), *own.shape[1:]))
        dist.recv(parts[-1], rank)
    return torch.cat(parts)


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _lent(model: nn.Module) -> list[Tensor]:
    """Weights and statistics, less counters."""
    return [tensor for tensor in tensors_of(model).values() if tensor.is_floating_point()]


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


# ---- batch normalisation -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def batch_wide(model: nn.Module) -> Iterator[None]:
    """Within, batch normalisation in training takes its statistics over the rows of all processes."""
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm) and layer.training]
    for layer in layers:
        layer.forward = partial(_normalised, layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _normalised(layer: _BatchNorm, x: Tensor) -> Tensor:
    """As the layer's own forward pass in training."""
    y, mean, variance, count = _Normalise.apply(x, layer.weight, layer.bias, layer.eps)  # type: ignore[no-untyped-call]
    if layer.running_mean is not None and layer.running_var is not None and layer.num_batches_tracked is not None:
        with torch.no_grad():
            layer.num_batches_tracked += 1
            share = 1 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
            layer.running_mean.lerp_(mean, share)
            layer.running_var.lerp_(variance * (count / (count - 1)), share)
    return y  # type: ignore[no-any-return]


class _Normalise(torch.autograd.Function):
    """Batch normalisation over the rows of all processes; PyTorch's own, SyncBatchNorm, is for GPUs alone.

    Sums over rows come from the kernels of the local one, which are several times faster than `var_mean` and products.
    Where rows are bfloat16, weights and statistics are float32, as in the local one.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, ...]:
        """The output, and mean, variance and number of what was normalised."""
        ones = x.new_ones(
            x.shape[1], dtype=torch.promote_types(x.dtype, torch.float32)
        )  # decide the type of what follows
        _, mean, scale = torch.ops.aten.native_batch_norm(x, ones, None, None, None, True, 0.0, eps)
        own = torch.cat([mean, scale**-2 - eps, mean.new_tensor([x.numel() / len(mean)])])
        everybody = own.new_empty(dist.get_world_size(), len(own))
        dist.all_gather(list(everybody.unbind()), own)
        means, variances, counts = everybody.split_with_sizes([len(mean), len(mean), 1], 1)
        count = counts.sum()
        mean = (counts * means).sum(0) / count
        variance = (counts * (variances + (means - mean) ** 2)).sum(0) / count
        ctx.save_for_backward(x, weight, mean, (variance + eps).rsqrt(), count)
        ctx.mark_non_differentiable(mean, variance, count)
        return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps), mean, variance, count

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        """Of this process's rows: x, weight and bias."""
        x, weight, mean, scale, count = ctx.saved_tensors
        _, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            gradient, x, torch.ones_like(mean), None, None, mean, scale, True, 0.0, [False, True, True]
        )
        sums = torch.stack([of_weight, of_bias])
        dist.all_reduce(sums)
        # With x' = scale (x - mean) and means over all rows, of_x is weight scale (g - mean g - x' mean (g x')), or:
        a = scale if weight is None else scale * weight
        b = -a * scale * sums[0] / count
        c = -a * sums[1] / count - b * mean
        a, b, c = (part.view(1, -1, *[1] * (x.ndim - 2)) for part in (a, b, c))
        of_x = torch.addcmul(c, x, b).addcmul_(gradient, a).to(x.dtype)
        return of_x, None if weight is None else of_weight, None if weight is None else of_bias, None
