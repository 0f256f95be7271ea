"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.

FedAvg with a proximal term: a client minimises its loss + mu/2 |w - w_global|^2, so that clients with unlike data do
not run apart.

Departures: every client does the same number of epochs, where the paper also lets slow devices do fewer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from catchment.core.client import Client
from catchment.families.weights import GlobalModel
from catchment.learning.losses import proximal
from catchment.learning.steps import LossFunction
from catchment.methods.fedavg import FedAvg
from catchment.reading import NonNegative


@dataclass(frozen=True)
class FedProx(FedAvg):
    """Federated averaging with a proximal term."""

    loss: ClassVar[LossFunction] = proximal  # equation 2
    mu: NonNegative = 0.01
    """The weight of the proximal term: mu / 2 times the squared distance to the global weights."""

    def given(self, client: Client, request: GlobalModel) -> dict[str, Any]:
        """The global weights hold the client back."""
        return {"anchor": request.weights, "mu": self.mu}
