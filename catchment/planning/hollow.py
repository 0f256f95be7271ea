"""Modules that do no work: what they would return has its shape, and their work is counted.

Inside `hollow`, the outermost call of a module returns numbers that were not computed. The first call for a shape of
input passes two samples through the module, to see what comes out and how many multiply-accumulates that takes. What is
returned hangs on the input and on all weights, so that a backward pass gives gradients. Where memory is counted, a few
samples show what activations take, and as much is counted for all until the backward pass. A module that does not map a
batch to a tensor of as many rows, such as a loss, works as ever; so does one inside which calls are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from catchment.randomness import torch_generator
from catchment.runs.rehearsal import PeakMemory, counting, uncounted

Values = Literal["quiet", "loud"]
"""What a hollow module returns, and its gradients: zeros, or noise that is always other. It predicts class 0."""

NOISE = 2**16  # numbers, used again and again from another start


class _Made(NamedTuple):
    """What a module makes of one sample."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    macs: int


class _Activations(NamedTuple):
    """Bytes of a pass."""

    held: int  # until the backward pass, without the output
    peak: int


class _Moments(PeakMemory):  # type: ignore[no-untyped-call]
    """Also notes the bytes at every moment."""

    def __init__(self) -> None:
        super().__init__()
        self.moments: list[int] = []

    def _see(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        super()._see(storage, nbytes)
        self.moments.append(self.now)


class Hollow:
    """Takes the place of all modules' work, and counts that of the server."""

    def __init__(self, values: Values) -> None:
        self.macs = 0  # of modules without hooks, as clients' count by hooks; measuring on test samples is no work
        self._noise = torch.rand(NOISE, generator=torch_generator(0, "hollow")) if values == "loud" else None
        self._calls = 0
        self._known: WeakKeyDictionary[nn.Module, dict[object, _Made | None]] = WeakKeyDictionary()
        self._taken: WeakKeyDictionary[nn.Module, dict[object, list[list[int]]]] = WeakKeyDictionary()
        self._trying = False

    def call(self, real: Callable[..., Any], module: nn.Module, *inputs: Any, **options: Any) -> Any:
        """What the call of a module returns."""
        made = None if self._trying or options else self._made(module, inputs)
        if made is None:
            return real(module, *inputs, **options)
        taken = None if counting() is None else self._activations(module, inputs)
        own = vars(module).get("forward")  # of lower precision
        module.forward = lambda *given: self._output(module, made, given, taken)
        try:
            return real(module, *inputs)  # with its hooks, which count
        finally:
            del module.forward
            if own is not None:
                module.forward = own

    def _made(self, module: nn.Module, inputs: tuple[Any, ...]) -> _Made | None:
        """What a module makes of a sample of such inputs; None if it has to do its work."""
        if not inputs or not all(isinstance(given, Tensor) and given.ndim and len(given) for given in inputs):
            return None
        if len({len(given) for given in inputs}) > 1:
            return None
        known = self._known.setdefault(module, {})
        form = _form(inputs)
        if form not in known:
            counted = any(part._forward_hooks for part in module.modules() if part is not module)
            known[form] = None if counted else self._try(module, inputs)
        return known[form]

    def _try(self, module: nn.Module, inputs: tuple[Any, ...]) -> _Made | None:
        with self._few(module, inputs, 2) as two, FlopCounterMode(display=False) as counter, torch.no_grad():
            output = module.forward(*(given.detach() for given in two))
        if not isinstance(output, Tensor) or output.ndim == 0 or len(output) != 2:
            return None
        return _Made(tuple(output.shape[1:]), output.dtype, int(counter.get_total_flops()) // 4)

    @contextmanager
    def _few(self, module: nn.Module, inputs: tuple[Any, ...], rows: int) -> Iterator[list[Tensor]]:
        """A few samples, which the module may work on."""
        modes = {part: part.training for part in module.modules()}
        self._trying = True
        try:
            module.eval()  # batch normalisation keeps its statistics
            with uncounted():
                yield [torch.cat([given[:1]] * rows) for given in inputs]
        finally:
            self._trying = False
            for part, mode in modes.items():
                part.training = mode

    def _activations(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> _Activations:
        """What a pass takes besides its input: the bytes at every moment are linear in the rows."""
        wanted = (_learns(_whole(given)) for given in inputs)
        known, key = self._taken.setdefault(module, {}), (_form(inputs), *wanted, torch.is_grad_enabled())
        if key not in known:
            known[key] = [self._moments(module, inputs, rows) for rows in (2, 4)]
        two, four = known[key]
        rows = len(inputs[0])
        held, *moments = (max(0, a + (b - a) * (rows - 2) // 2) for a, b in zip(two, four))
        return _Activations(held, max(moments, default=0))

    def _moments(self, module: nn.Module, inputs: tuple[Tensor, ...], rows: int) -> list[int]:
        """What a few samples hold after a pass besides its output, then their bytes at every moment, there and back."""
        with self._few(module, inputs, rows) as few, _Moments() as memory:
            wanted = [tensor for tensor in map(_whole, (*few, *module.parameters())) if _learns(tensor)]
            output = _whole(module.forward(*few))
            held = memory.now - output.nbytes
            if wanted:
                torch.autograd.grad(output.sum(), wanted, allow_unused=True)  # gradients are held as they come
        return [held, *memory.moments]

    def _output(self, module: nn.Module, made: _Made, inputs: tuple[Tensor, ...], taken: _Activations | None) -> Tensor:
        rows, grows, memory = len(inputs[0]), torch.is_grad_enabled(), counting()
        if not module._forward_hooks and not torch.is_inference_mode_enabled():
            self.macs += made.macs * rows * (3 if grows else 1)
        if memory is None or taken is None:
            return self._numbers_that_hang(module, made, inputs, None)
        with uncounted():
            token = torch.ones(())  # freed in the backward pass, and with it what is counted for it
            output = self._numbers_that_hang(module, made, inputs, token)
        memory.pass_through(taken.peak)
        memory.hold(_whole(output))
        if grows:
            memory.hold(token, taken.held)
        if _whole(output).requires_grad:  # then others may hold more
            _whole(output).register_hook(lambda _: memory.pass_through(taken.peak - taken.held))  # type: ignore[no-untyped-call]
        return output

    def _numbers_that_hang(
        self, module: nn.Module, made: _Made, inputs: tuple[Tensor, ...], token: Tensor | None
    ) -> Tensor:
        """An output on which a backward pass can be done; its first step lets go of the token."""
        device, shape, grows = inputs[0].device, (len(inputs[0]), *made.shape), torch.is_grad_enabled()
        output = self._numbers(shape, made.dtype).to(device)
        first = torch.zeros(shape, dtype=made.dtype, device=device)
        first[:, :1] = 1  # of the classes or channels: a number that is added to all classes has no gradient
        if len(shape) == 2:
            output = output + first
        for tensor in (*inputs, *module.parameters()) if grows else ():
            if tensor.is_floating_point():
                hangs = (self._numbers(tuple(tensor.shape), tensor.dtype).to(device) * tensor).sum()
                output = output + (hangs - hangs.detach()) * first
        return output if token is None else output * token.to(output)

    def _numbers(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if self._noise is None or not dtype.is_floating_point:
            return torch.zeros(shape, dtype=dtype)
        self._calls += 1
        count, start = torch.Size(shape).numel(), self._calls * 31 % NOISE
        return self._noise.repeat(-(-(start + count) // NOISE))[start : start + count].to(dtype).view(shape)


def _whole(tensor: Tensor) -> Tensor:
    """The tensor with the values of all models, inside `torch.vmap` over models."""
    while torch._C._functorch.is_batchedtensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def _learns(tensor: Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


def _form(inputs: tuple[Tensor, ...]) -> object:
    return tuple((given.shape[1:], given.dtype) for given in inputs)


@contextmanager
def hollow(values: Values) -> Iterator[Hollow]:
    """No module of this process works meanwhile."""
    real, stand_in = nn.Module.__call__, Hollow(values)

    def call(module: nn.Module, *inputs: Any, **options: Any) -> Any:
        return stand_in.call(real, module, *inputs, **options)

    nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        yield stand_in
    finally:
        nn.Module.__call__ = real  # type: ignore[method-assign]
