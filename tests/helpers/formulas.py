"""Bytes per round by the formulas of FedGEMS (Figure 6): what any implementation must send, in 32-bit numbers.

B_logits is 4 bytes per class and public sample, B_paras 4 bytes per parameter, B_features 4 bytes per number of the
features. "#C" counts uploads and "#S" what the server sends, which by the paper's Table 4 is one message to each
client. The formulas leave out what else our messages hold: positions of samples, labels, losses, framing, and buffers
of batch normalisation. The ledger counts all of it, field by field.
"""

from __future__ import annotations

from typing import NamedTuple

FLOAT = 4  # bytes


class Traffic(NamedTuple):
    """Bytes of all clients together in one round."""

    up: int
    down: int


def fedavg(clients: int, parameters: int) -> Traffic:
    """B_paras (#C + #S)."""
    size = FLOAT * parameters * clients
    return Traffic(size, size)


def fedmd(clients: int, samples: int, classes: int) -> Traffic:
    """B_logits (#C + #S); also of DS-FL, Cronus and FedGEM."""
    size = FLOAT * classes * samples * clients
    return Traffic(size, size)


def fedgems(clients: int, samples: int, classes: int, wanted: int) -> Traffic:
    """B_logits (#C_selective + #S): `wanted` of the public samples go up, all come down."""
    return Traffic(FLOAT * classes * wanted * clients, FLOAT * classes * samples * clients)


def feddf(clients: int, parameters: int, samples: int, classes: int) -> Traffic:
    """B_logits #C + B_paras (#C + #S). Where the server computes the logits itself, use FedAvg's formula."""
    weights = fedavg(clients, parameters)
    return Traffic(weights.up + FLOAT * classes * samples * clients, weights.down)


def fedgkt(private: int, features: int, classes: int) -> Traffic:
    """B_logits (#C + #S) + B_features #C, over the `private` samples of all clients."""
    return Traffic(FLOAT * (features + classes) * private, FLOAT * classes * private)
