"""A device that is not there: tensors that say they are on `meta`, with their numbers kept on the CPU.

Within `Elsewhere()` everything that is moved to `meta` or made there computes real numbers, and an operation on tensors
of both devices raises, as it would with a GPU. Inference mode hides moves from it; use `torch.no_grad` in its place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

HERE = torch.device("cpu")
MOVES = ("_to_copy", "copy_")  # between devices
PLAIN = ("_local_scalar_dense", "equal")  # give no tensor


class Remote(Tensor):
    """Says that it is elsewhere; `inner` has its numbers."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Remote:
        return Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device("meta"),
        )

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(function, args, kwargs or {})


class Elsewhere(TorchDispatchMode):
    """While it is entered, `meta` is a device with numbers."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(function, args, kwargs or {})


def _computed(function: Any, args: Any, kwargs: Any) -> Any:
    tensors = [item for item in tree_flatten((args, kwargs))[0] if isinstance(item, Tensor)]
    remote = any(isinstance(tensor, Remote) for tensor in tensors)
    local = [tuple(tensor.shape) for tensor in tensors if not isinstance(tensor, Remote) and tensor.ndim]
    name = function.overloadpacket.__name__
    if remote and local and name not in MOVES:
        raise RuntimeError(f"{function} with tensors on two devices; on the CPU: {local}")
    device = kwargs.get("device")
    there = remote if device is None else torch.device(device).type == "meta"
    inner_args, inner_kwargs = tree_map(lambda x: x.inner if isinstance(x, Remote) else x, (args, kwargs))
    if device is not None:
        inner_kwargs["device"] = HERE
    result = function(*inner_args, **inner_kwargs)
    for given, inner in zip((*args, *kwargs.values()), (*inner_args, *inner_kwargs.values())):
        if isinstance(result, Tensor) and inner is result:
            return given  # changed in place
    if name in PLAIN or not there:
        return result
    return tree_map(lambda x: Remote(x) if isinstance(x, Tensor) and not isinstance(x, Remote) else x, result)
