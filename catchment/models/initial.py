"""First weights other than a model's own."""

from __future__ import annotations

from torch import nn

WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def glorot(model: nn.Module) -> None:
    """Glorot and Bengio's uniform weights for linear and convolutional layers, and biases of zero."""
    for part in model.modules():
        if isinstance(part, WEIGHTED):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
