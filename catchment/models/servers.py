"""The server's model where none is named: one that goes with the clients' models, known by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

HALVES: Mapping[str, str] = {
    "cnn": "resnet10",
    "lenet": "resnet10",
    "resnet4": "resnet10",
    "resnet6": "resnet10",
    "resnet8": "resnet19",
    "resnet8_basic": "resnet19",
    "resnet11": "resnet10",
    "resnet20": "resnet19",
    "resnet38": "resnet37",
    "resnet56": "resnet55",
    "resnet110": "resnet109",
    "shufflenetv2": "resnet19",
    "mobilenetv2": "resnet55",
}
"""By the clients' model: a half that takes its features; of a whole ResNet its own."""

LARGER: Mapping[str, str] = {
    "mlp": "resnet11",
    "cnn": "resnet11",
    "lenet": "resnet11",
    "resnet4": "resnet11",
    "resnet6": "resnet11",
    "resnet8": "resnet20",
    "resnet8_basic": "resnet20",
    "resnet11": "resnet20",
    "resnet20": "resnet56",
    "resnet38": "resnet110",
    "resnet56": "resnet110",
    "shufflenetv2": "resnet18",
    "mobilenetv2": "resnet18",
}
"""By the clients' model: a whole one with more parameters that takes the same images."""

_BY_SIZE = (
    "resnet10", "resnet11", "resnet19", "resnet20", "resnet37", "resnet55", "resnet56", "resnet109", "resnet110",
    "resnet18",
)  # fmt: skip


def server_for(clients: Sequence[str], half: bool) -> str | None:
    """The model for a server of such clients, the largest of those that go with each; None if there is none."""
    known = HALVES if half else LARGER
    found = [known.get(name.partition("(")[0].strip()) for name in clients]
    if None in found:
        return None
    return max((name for name in found if name is not None), key=_BY_SIZE.index)
