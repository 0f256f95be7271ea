from dataclasses import dataclass

import torch

from catchment import Stage
from catchment.codecs import Form, put


@dataclass(frozen=True)
class Ternary(Stage):
    """Each number as -1, 0 or 1 times the largest magnitude of its tensor, in two bits."""

    saves = True
    loses = True
    threshold: float = 0.5  # of the largest magnitude, below which a number becomes 0

    def encode(self, parts, context):
        values = parts["values"].float()
        scale = values.abs().max()
        levels = 1 + values.sign() * (values.abs() > self.threshold * scale)
        return put(parts, levels.to(torch.uint8), scale=scale)

    def layout(self, before, count):
        levels = Form(torch.uint8, before["values"].shape, bits=2)
        return put(before, levels, scale=Form(torch.float32, ()))

    def decode(self, parts, context):
        return put(parts, ((parts["values"].float() - 1) * parts["scale"]).to(context.form.dtype))
