"""A training step, declared once: a pure loss, and the loop that minimises it. Knows nothing of federation.

A method says its loss as a plain function whose parameters say what it needs:

    @loss_function
    def l_c(outputs, labels, teacher=None, *, alpha: float, temperature: float) -> Tensor:

Positional ones are tensors. `outputs` and `labels` are of the batch, `weights` what is trained, by name, and
`criterion` the loss of the task; all others are given to `fit`, as a row for each sample or as tensors by name. One
with a default may be left out. Keyword-only ones are numbers. The loss is a mean over the batch, uses nothing but
what it is given, and branches on what is there, never on a number: so it is the same on a device, in a graph, and on
a part of a batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any

import torch
from torch import Tensor, nn

from catchment.data import Batch
from catchment.errors import Diverged, ProtocolError

OF_A_STEP = ("outputs", "labels", "weights", "criterion")  # inputs that nobody has to give

Observer = Callable[[Tensor, Tensor], Mapping[str, Tensor] | None]
"""Is shown the ids `[B]` and outputs `[B, ...]` of each batch, on the CPU, before its step; may give rows by name."""


class LossFunction:
    """A declared loss: what it is called, and what it takes."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function
        update_wrapper(self, function)
        where = f'loss "{function.__name__}"'
        if "<" in function.__qualname__:
            raise ProtocolError(f"{where} is made inside another function, whose variables it sees; move it outside")
        parameters = inspect.signature(function).parameters.values()
        for parameter in parameters:
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise ProtocolError(f"{where} takes {parameter}; inputs by name are expected")
        numbers = [parameter for parameter in parameters if parameter.kind == parameter.KEYWORD_ONLY]
        inputs = [parameter for parameter in parameters if parameter.kind != parameter.KEYWORD_ONLY]
        self.inputs = tuple(parameter.name for parameter in inputs)
        if self.inputs[:1] != OF_A_STEP[:1]:
            raise ProtocolError(f"{where} takes {', '.join(self.inputs) or 'nothing'}; outputs are expected first")
        self.scalars = tuple(parameter.name for parameter in numbers)
        self.optional = {parameter.name for parameter in parameters if parameter.default is not parameter.empty}
        self.needed = {*self.inputs, *self.scalars} - self.optional - {*OF_A_STEP}

    @property
    def name(self) -> str:
        """By which another process finds it."""
        return f"{self.function.__module__}:{self.function.__name__}"

    def __call__(self, *inputs: Any, **named: Any) -> Tensor:
        """The loss, mean over the batch."""
        return self.function(*inputs, **named)

    def refusal(self, given: Iterable[str]) -> str:
        """Why it cannot work with these inputs and numbers, besides those of a step; nothing if it can."""
        taken = [name for name in (*self.inputs, *self.scalars) if name not in OF_A_STEP]
        what = f'loss "{self.function.__name__}" takes {", ".join(taken) or "nothing else"}'
        if unknown := [name for name in given if name not in taken]:
            return f"{what}, and {', '.join(unknown)} was given"
        missing = [name for name in taken if name in self.needed and name not in given]
        return f"{what}, and {', '.join(missing)} is missing" if missing else ""


def loss_function(function: Callable[..., Tensor]) -> LossFunction:
    """Declare a loss, so that `fit` can minimise it."""
    return LossFunction(function)


@dataclass(frozen=True)
class PerSample:
    """A row for each sample, found by the ids of a batch: ascending ones, or the numbers of the rows."""

    values: Tensor  # [n, ...]
    ids: Tensor | None = None  # int64 [n]

    def of(self, ids: Tensor) -> Tensor:
        """The rows of a batch, `[B, ...]`."""
        ids = ids.cpu()
        if self.ids is None:
            return self.values[ids]
        at = torch.searchsorted(self.ids, ids).clamp_(max=len(self.ids) - 1)
        if not torch.equal(self.ids[at], ids):
            other = int(ids[self.ids[at] != ids][0])
            raise ProtocolError(f"sample {other} of a batch has no row among those of {len(self.ids)} samples")
        return self.values[at]


Given = PerSample | Mapping[str, Tensor] | float | None
"""What a loss takes besides what every step has; None: it is not there."""


def fit(
    loss: LossFunction,
    model: Callable[[Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Batch],
    *,
    criterion: Callable[[Tensor, Tensor], Tensor] | None = None,
    observe: Observer | None = None,
    **given: Given,
) -> float:
    """One step per batch; returns the mean loss. A loss that is not finite raises `Diverged`.

    What the loss takes is given by name. Where a row is known only when the outputs are, `observe` gives it.
    """
    rows, fixed = divided(loss, given, criterion, observe)
    step = Step(loss, model, optimizer, fixed)
    for batch in batches:
        seen = None if observe is None else partial(_see, observe, batch)
        step(batch.images, rows_of(batch, loss, rows), seen)
    return step.mean()


def _see(observe: Observer, batch: Batch, outputs: Tensor) -> Mapping[str, Tensor] | None:
    return observe(batch.ids.cpu(), outputs.cpu())


def divided(
    loss: LossFunction,
    given: Mapping[str, Given],
    criterion: Callable[[Tensor, Tensor], Tensor] | None,
    observe: Observer | None,
) -> tuple[dict[str, PerSample], dict[str, Any]]:
    """What a loss is given: rows of samples, and what is the same for all batches."""
    here = {name: value for name, value in given.items() if value is not None}
    if given or loss.needed:
        later = [] if observe is None else asked_later(loss, here)
        if why := loss.refusal([*given, *later]):
            raise ProtocolError(why)
    rows = {name: value for name, value in here.items() if isinstance(value, PerSample)}
    fixed: dict[str, Any] = {name: value for name, value in here.items() if name not in rows}
    return rows, fixed if "criterion" not in loss.inputs else {**fixed, "criterion": criterion}


def asked_later(loss: LossFunction, given: Iterable[str]) -> list[str]:
    """Inputs that are not given, so that whoever observes the outputs has to give them."""
    return [name for name in loss.inputs if name in loss.needed and name not in given]


def rows_of(batch: Batch, loss: LossFunction, rows: Mapping[str, PerSample]) -> dict[str, Tensor]:
    """The labels of a batch, if the loss takes them, and the rows of its samples."""
    own = {name: values.of(batch.ids).to(batch.images.device) for name, values in rows.items()}
    return {"labels": batch.labels, **own} if "labels" in loss.inputs else own


class Step:
    """Training steps of one model with one loss, and the sum of what they lost."""

    def __init__(
        self,
        loss: LossFunction,
        model: Callable[[Tensor], Tensor],
        optimizer: torch.optim.Optimizer,
        fixed: Mapping[str, Any],
    ) -> None:
        """`fixed` is what the loss takes that is the same for all batches."""
        self._loss = loss.function
        self._model = model
        self._optimizer = optimizer
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        device = self._parameters[0].device
        self._fixed = {
            name: {key: tensor.to(device) for key, tensor in value.items()} if isinstance(value, Mapping) else value
            for name, value in fixed.items()
        }
        if "weights" in loss.inputs and "weights" not in fixed:
            assert isinstance(model, nn.Module)
            self._fixed["weights"] = {name: w for name, w in model.named_parameters() if w.requires_grad}
        self.total: Tensor | None = None
        self._steps = 0

    def __call__(
        self,
        images: Tensor,
        rows: Mapping[str, Tensor],
        observe: Callable[[Tensor], Mapping[str, Tensor] | None] | None = None,
        share: float = 1.0,
    ) -> None:
        """Forward, backward, update. `observe` sees the outputs in between; the loss counts for a share of itself."""
        for parameter in self._parameters:  # zero_grad() in a fraction of its time, which counts for tiny models
            parameter.grad = None
        outputs = self._model(images)
        if observe is not None and (answered := observe(outputs.detach())):
            rows = {**rows, **{name: tensor.to(outputs.device) for name, tensor in answered.items()}}
        value = self._loss(outputs, **rows, **self._fixed)
        del outputs  # before memory is taken for gradients
        if share != 1:
            value = share * value
        value.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self.total = value.detach() if self.total is None else self.total + value.detach()
        self._steps += 1

    def mean(self) -> float:
        """The mean loss of all steps, if it is finite."""
        mean = 0.0 if self.total is None else float(self.total) / self._steps
        if mean != mean or mean in (float("inf"), float("-inf")):
            raise Diverged(
                f"the loss is {mean} after {self._steps} steps; a lower learning rate (optimizer.*.lr, now "
                f"{self._optimizer.param_groups[0]['lr']:g}) or normalised data usually helps"
            )
        return mean
