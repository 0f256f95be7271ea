"""A network as a sequence of modules: one layer with weights, and what follows it up to the next."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


def modules_of(model: nn.Module, shape: tuple[int, ...]) -> list[list[str]]:
    """The names in the state dict by module, in the order in which the modules work on an input of this shape.

    A module begins with a convolution or a linear layer; batch normalisation and the like belong to the one before
    them. A layer that works on what an earlier layer worked on is a shortcut, and belongs to the module whose output it
    joins, the one before it. What was not seen at work belongs to the module of the name before it. The model is put
    into evaluation mode.
    """
    order: list[nn.Module] = []
    inputs: dict[nn.Module, Tensor] = {}

    def see(part: nn.Module, given: tuple[Tensor, ...], output: object) -> None:
        if part not in inputs:
            order.append(part)
            inputs[part] = given[0]  # held, so that nothing else has its identity

    leaves = [part for part in model.modules() if not list(part.children())]
    hooks = [part.register_forward_hook(see) for part in leaves]
    first = next(model.parameters(), torch.empty(0))
    with torch.no_grad():
        model.eval()(first.new_zeros(1, *shape))
    for hook in hooks:
        hook.remove()

    number = -1
    of_part: dict[nn.Module, int] = {}
    seen: list[Tensor] = []
    for part in order:
        if isinstance(part, LAYERS):
            given = inputs[part]
            if number < 0 or not any(given is other for other in seen):
                number += 1
            seen.append(given)
        of_part[part] = max(number, 0)
    owner = {
        f"{name}.{key}" if name else key: of_part[part]
        for name, part in model.named_modules()
        if part in of_part
        for key in part.state_dict()
    }
    modules: list[list[str]] = [[] for _ in range(number + 1)] or [[]]
    last = 0
    for name in model.state_dict():
        last = owner.get(name, last)
        modules[last].append(name)
    return [names for names in modules if names]
