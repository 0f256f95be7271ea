"""Training steps that several processes share, by DistributedDataParallel. Knows nothing of federation.

Every process has the model and the optimiser. Process 0 sends weights and the optimiser's state before the first step,
then the rows of each batch. Each process takes the loss of its rows, gradients are averaged over all rows, and all make
the same step: that of one process, up to the rounding of sums, if the loss is a mean over the batch.

Batch normalisation is over the whole batch on GPUs (SyncBatchNorm), which PyTorch does not offer on CPUs: there each
process normalises its own rows, and running statistics are the mean of all processes' at the end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from catchment.data import Batch
from catchment.errors import RunError, printable
from catchment.learning.optimizers import OptimizerSettings, load_optimizer_tensors, optimizer_tensors
from catchment.learning.steps import Given, LossFunction, Observer, Step, asked_later, divided, rows_of
from catchment.names import resolve
from catchment.tasks import TASKS, Task

FEWEST = 2  # rows per process, which batch normalisation needs; of a smaller batch every process takes all
APART: dict[str, Any] = {"broadcast_buffers": False}  # buffers of processes may differ between steps
if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters:  # its name from PyTorch 2.13 on
    APART = {"forward_sync_buffers": False}

IMAGES = "(images)"  # among the rows of a batch

Order = Callable[[Mapping[str, Any]], None]  # tells the other processes what to do next
Form = Mapping[str, Any]  # of a tensor, for a process that is to receive it


# ---- process 0 ---------------------------------------------------------------------------------------------------


class Together:
    """The other processes, as process 0 sees them."""

    def __init__(self, order: Order | None = None) -> None:
        """Without `order` there are none: it is only noted what could be shared."""
        self._order = order
        self.alone: dict[str, str] = {}  # by loss: why process 0 minimises it alone; nothing if all do

    def takes(self, loss: LossFunction, why: str) -> bool:
        """Note why the others cannot help to minimise a loss; whether they do."""
        self.alone[loss.name] = why or self.alone.get(loss.name, "")
        return not why and self._order is not None

    def fit(
        self,
        loss: LossFunction,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        batches: Iterable[Batch],
        *,
        built: Mapping[str, Any],
        settings: OptimizerSettings,
        task: Task,
        observe: Observer | None,
        given: Mapping[str, Given],
    ) -> float:
        """As `steps.fit`; `built` is what the others build the same model from, `settings` are the optimiser's."""
        samples, fixed = divided(loss, given, task.loss, observe)
        state = {f"optimizer/{name}": tensor for name, tensor in optimizer_tensors(optimizer).items()}
        for name, value in fixed.items():
            if isinstance(value, Mapping):
                state |= {f"{name}/{key}": tensor for key, tensor in value.items()}
        self._tell(
            model=built,
            optimizer={name: value for name, value in dataclasses.asdict(settings).items() if name != "schedule"},
            loss=loss.name,
            task=task.name,
            numbers={name: fixed[name] for name in loss.scalars if name in fixed},
            state={name: _form(tensor) for name, tensor in state.items()},
            observed=observe is not None,
        )
        with _all_or_none():
            flat = [_flat(tensor).to(next(model.parameters()).device) for tensor in state.values()]
            if flat:
                dist.broadcast(torch.cat(flat), 0)
        with _part(loss, model, optimizer, fixed) as step:
            try:
                for batch in batches:
                    rows = {IMAGES: batch.images, **rows_of(batch, loss, samples)}
                    rates = [group["lr"] for group in optimizer.param_groups]
                    with _all_or_none():
                        outputs = self._step(step, rows, rates, observe is not None)
                    if observe is not None and outputs is not None:
                        observe(batch.ids.cpu(), outputs.cpu())
            except BaseException:
                self._tell(left=True)
                raise
            self._tell(left=False)
            with _all_or_none():
                _settle(step, model)
        return step.mean()

    def _step(self, step: Step, rows: Mapping[str, Tensor], rates: list[float], observed: bool) -> Tensor | None:
        """Hand out the rows of a batch and take part in its step; the outputs of all rows, if they are wanted."""
        size, count = len(rows[IMAGES]), dist.get_world_size()
        few = size < FEWEST * count
        sizes = [size] * count if few else [len(part) for part in torch.empty(size).tensor_split(count)]
        parts = {
            name: [tensor] * count if few else list(tensor.split_with_sizes(sizes)) for name, tensor in rows.items()
        }
        self._tell(
            rows=[{name: _form(part[rank]) for name, part in parts.items()} for rank in range(count)],
            shares=[count * one / sum(sizes) for one in sizes],
            rates=rates,
            few=few,
        )
        sent = [
            dist.isend(_flat(part[rank], _is_channels_last(part[rank])), rank)
            for rank in range(1, count)
            for part in parts.values()
        ]
        own = {name: part[0] for name, part in parts.items()}
        outputs: list[Tensor] = []
        step(own.pop(IMAGES), own, outputs.append if observed else None, count * sizes[0] / sum(sizes))
        for rank in range(1, count if observed and not few else 1):
            outputs.append(outputs[0].new_empty(sizes[rank], *outputs[0].shape[1:]))
            dist.recv(outputs[-1], rank)
        for work in sent:
            if work is not None:  # it is None for who is no member of the group
                work.wait()
        return torch.cat(outputs) if observed else None

    def _tell(self, **said: Any) -> None:
        assert self._order is not None
        self._order({"fit": said})


TOGETHER: ContextVar[Together | None] = ContextVar("TOGETHER", default=None)
"""Of this run, where its training steps are shared."""


@contextlib.contextmanager
def sharing(together: Together) -> Iterator[Together]:
    """Within, training steps are shared."""
    token = TOGETHER.set(together)
    try:
        yield together
    finally:
        TOGETHER.reset(token)


def why_alone(loss: LossFunction, task: Task, observe: Observer | None, given: Mapping[str, Given]) -> str:
    """Why a loss can be minimised by one process alone; nothing if by several."""
    if observe is not None and (later := asked_later(loss, given)):
        return f"{', '.join(later)} {'are' if len(later) > 1 else 'is'} known only after its outputs"
    if "criterion" in loss.inputs and TASKS.get(task.name) is not task:
        return f"the loss is that of a task of your own, {task.name}"
    return ""


# ---- the other processes -----------------------------------------------------------------------------------------


class Assistant:
    """What another process does."""

    def __init__(self, build: Callable[[Mapping[str, Any]], nn.Module], hear: Callable[[], Mapping[str, Any]]) -> None:
        """`build` makes a model, `hear` waits for the next thing that process 0 tells."""
        self._build = build
        self._hear = hear
        self._models: dict[str, nn.Module] = {}

    def fit(
        self,
        model: Mapping[str, Any],
        optimizer: Mapping[str, Any],
        loss: str,
        task: str,
        numbers: Mapping[str, float],
        state: Mapping[str, Form],
        observed: bool,
    ) -> None:
        """Take part in a fit, until process 0 ends or leaves it."""
        if str(model) not in self._models:
            self._models[str(model)] = self._build(model)
        own = self._models[str(model)].train()
        device = next(own.parameters()).device
        given: dict[str, dict[str, Tensor]] = {"optimizer": {}}
        flat = torch.empty(sum(map(_size, state.values())), dtype=torch.uint8, device=device)
        if len(flat):
            dist.broadcast(flat, 0)
        for (name, form), part in zip(state.items(), flat.split_with_sizes(list(map(_size, state.values())))):
            kind, _, key = name.partition("/")
            given.setdefault(kind, {})[key] = part.clone().view(getattr(torch, form["dtype"])).view(form["shape"])
        steps = OptimizerSettings(**optimizer).build(own.parameters())
        load_optimizer_tensors(steps, given.pop("optimizer"))
        declared = resolve("loss", loss, {})
        fixed = {**numbers, **given, "criterion": TASKS[task].loss} if task in TASKS else {**numbers, **given}
        fixed = {name: value for name, value in fixed.items() if name in (*declared.inputs, *declared.scalars)}
        with _part(declared, own, steps, fixed) as step:
            while "rows" in (said := self._hear()["fit"]):
                self._step(step, steps, said, device, observed)
            if not said["left"]:
                _settle(step, own)

    def _step(
        self,
        step: Step,
        optimizer: torch.optim.Optimizer,
        said: Mapping[str, Any],
        device: torch.device,
        observed: bool,
    ) -> None:
        """Take rows, and part in their step; give outputs if they are wanted."""
        rank = dist.get_rank()
        rows = {name: _empty(form, device) for name, form in said["rows"][rank].items()}
        for tensor in rows.values():
            dist.recv(_flat(tensor, _is_channels_last(tensor)), 0)
        for group, rate in zip(optimizer.param_groups, said["rates"]):
            group["lr"] = rate
        outputs: list[Tensor] = []
        step(rows.pop(IMAGES), rows, outputs.append if observed else None, said["shares"][rank])
        if observed and not said["few"]:
            dist.send(outputs[0].contiguous(), 0)


# ---- all processes -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _part(
    loss: LossFunction, model: nn.Module, optimizer: torch.optim.Optimizer, fixed: Mapping[str, Any]
) -> Iterator[Step]:
    """One process's steps; their gradients are averaged over all processes."""
    if "weights" in loss.inputs:
        fixed = {**fixed, "weights": dict(model.named_parameters())}
    on_gpu = next(model.parameters()).device.type == "cuda"
    with _over_all_rows(model) if on_gpu else contextlib.nullcontext():
        with _all_or_none():  # weights are sent here
            shared = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True, **APART)
        yield Step(loss, shared, optimizer, fixed)


def _settle(step: Step, model: nn.Module) -> None:
    """Make the loss, and running statistics, the mean over processes."""
    tensors = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    if step.total is not None:
        tensors.append(step.total)
    if tensors:
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat)
        means = (flat / dist.get_world_size()).split_with_sizes([tensor.numel() for tensor in tensors])
        for tensor, mean in zip(tensors, means):
            tensor.copy_(mean.view(tensor.shape))


@contextlib.contextmanager
def _over_all_rows(model: nn.Module) -> Iterator[None]:
    """Within, batch normalisation takes its statistics over the rows of all processes."""
    layers = {name: layer for name, layer in model.named_modules() if name and isinstance(layer, _BatchNorm)}
    nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for name, layer in layers.items():
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, layer)


@contextlib.contextmanager
def _all_or_none() -> Iterator[None]:
    """Around what all processes do at once: if one fails, the others wait for it in vain, so that the job must end."""
    try:
        yield
    except Exception as error:
        why = printable(f"{type(error).__name__}: {error}")
        raise RunError(
            f"the processes could not finish a training step that they share ({why}); with data_parallel = false the "
            "first one trains alone"
        ) from error


def _is_channels_last(tensor: Tensor) -> bool:
    """Whether channels are neighbours in memory."""
    rows = tensor.is_contiguous()
    return tensor.ndim == 4 and not rows and tensor.is_contiguous(memory_format=torch.channels_last)


def _flat(tensor: Tensor, channels_last: bool = False) -> Tensor:
    """The bytes of a tensor in the order of its memory; a view, if they lie without gaps."""
    tensor = tensor.detach()
    return (tensor.permute(0, 2, 3, 1) if channels_last else tensor).contiguous().reshape(-1).view(torch.uint8)


def _form(tensor: Tensor) -> Form:
    """What another process needs to know to receive a tensor."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": list(tensor.shape), "channels_last": _is_channels_last(tensor)}


def _empty(form: Form, device: torch.device) -> Tensor:
    """A tensor to be received."""
    memory = torch.channels_last if form["channels_last"] else torch.contiguous_format
    return torch.empty(form["shape"], dtype=getattr(torch, form["dtype"]), device=device, memory_format=memory)


def _size(form: Form) -> int:
    """Bytes of a tensor."""
    return math.prod(form["shape"]) * int(getattr(torch, form["dtype"]).itemsize)
