"""The server's state as tensors and JSON, and back: for checkpoints, and for the fingerprint of a run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from catchment.core.spool import Spool
from catchment.errors import ProtocolError
from catchment.exchange.message import Message
from catchment.learning.optimizers import load_optimizer_state


def flatten(
    value: Any, name: str, tensors: dict[str, Tensor], spools: list[Spool] | None = None, *, in_order: bool = False
) -> Any:
    """A JSON form of a state; its tensors go to `tensors` under `name`, and the spools that hold some to `spools`.

    `in_order` sorts dicts by their keys, for forms that must not depend on the order of arrival.
    """

    def inner(value: Any, name: str) -> Any:
        return flatten(value, name, tensors, spools, in_order=in_order)

    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    if isinstance(value, dict):
        if not in_order and _alike(value):
            tensors[name] = torch.cat(list(value.values()))
            return {"rows": {"tensor": name, "keys": list(value), "counts": [len(rows) for rows in value.values()]}}
        items = []
        pairs = sorted(value.items(), key=lambda pair: str(pair[0])) if in_order else value.items()
        for number, (key, item) in enumerate(pairs):
            if not isinstance(key, str | int):
                raise ProtocolError(
                    f"{name} has the key {key!r}; a checkpoint takes keys that are text or whole numbers"
                )
            items.append([key, inner(item, f"{name}/{number}")])
        return {"dict": items}
    frozen = getattr(getattr(value, "__dataclass_params__", None), "frozen", False)
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        items = [inner(item, f"{name}/{number}") for number, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    if isinstance(value, Spool):
        if spools is not None:
            spools.append(value)
        keys = sorted(value.keys()) if in_order else value.keys()
        return {"spool": [[key, inner(value.rows(key), f"{name}/{key}")] for key in keys]}
    if hasattr(value, "state_dict"):
        return {"state": inner(value.state_dict(), name)}
    if dataclasses.is_dataclass(value) and not frozen:
        fields = [f.name for f in dataclasses.fields(value)]
        return {"fields": {f: inner(getattr(value, f), f"{name}/{f}") for f in fields}}
    raise ProtocolError(
        f"{name} is a {type(value).__name__}, which cannot be checkpointed; use tensors, plain values, lists, dicts, "
        "dataclasses that are not frozen, modules, optimisers or spools"
    )


def unflatten(form: Any, tensors: Mapping[str, Tensor], fresh: Any) -> Any:
    """The state back. `fresh` is a new state of the same method: its modules, optimisers and spools are filled."""
    ((kind, content),) = form.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "value":
        return content
    if kind == "rows":
        parts = tensors[content["tensor"]].split_with_sizes(content["counts"])
        return {key: rows.clone() for key, rows in zip(content["keys"], parts)}
    if kind == "dict":
        old = fresh if isinstance(fresh, dict) else {}
        return {key: unflatten(item, tensors, old.get(key)) for key, item in content}
    if kind in ("list", "tuple"):
        known = fresh if isinstance(fresh, list | tuple) else ()
        items = [unflatten(c, tensors, known[i] if i < len(known) else None) for i, c in enumerate(content)]
        return tuple(items) if kind == "tuple" else items
    if fresh is None:
        raise ProtocolError(
            "a checkpoint holds a module, an optimiser, a spool or a dataclass in a place where a new state of the "
            "method has none; make it in init, or keep its tensors instead"
        )
    if kind == "spool":
        fresh.clear()
        for key, item in content:
            fresh.put(key, unflatten(item, tensors, None))
        return fresh
    if kind == "state":
        loaded = unflatten(content, tensors, None)
        if isinstance(fresh, torch.optim.Optimizer):
            load_optimizer_state(fresh, loaded)
        else:
            fresh.load_state_dict(loaded)
        return fresh
    for name, item in content.items():
        setattr(fresh, name, unflatten(item, tensors, getattr(fresh, name)))
    return fresh


def _alike(value: dict[Any, Any]) -> bool:
    """Rows of one kind by number, as of each of many clients: one tensor of a file in place of thousands."""
    if len(value) < 2 or not all(type(key) is int and isinstance(rows, Tensor) for key, rows in value.items()):
        return False
    first = next(iter(value.values()))
    return first.ndim > 0 and all(
        rows.ndim and rows.shape[1:] == first.shape[1:] and rows.dtype == first.dtype and rows.device == first.device
        for rows in value.values()
    )


def streamed(message: Message, spools: Sequence[Spool]) -> Iterator[bytes | memoryview]:
    """The bytes of a message in parts, with no more in memory of what lies in spools than the rows of one key."""
    for buffer in message.buffers():
        yield buffer
        for spool in spools:
            spool.release()


def fingerprint(state: Any, measured: Mapping[str, Any]) -> str:
    """A short hash of all that the server remembers and of what it measured last: equal for runs that did the same."""
    tensors: dict[str, Tensor] = {}
    spools: list[Spool] = []
    form = flatten(state, "state", tensors, spools, in_order=True)
    digest = hashlib.sha256()
    for part in streamed(Message(tensors, {"form": json.dumps([form, measured])}), spools):
        digest.update(part)
    return digest.hexdigest()[:16]
