"""FedMD: Li, Wang, FedMD: Heterogenous Federated Learning via Model Distillation, NeurIPS workshop, 2019.

Clients of any architecture talk in class scores: all score the same public samples, the server sends back the mean of
the scores, every client first fits its own to them (digest) and then trains on its private data (revisit).

Departures: transfer learning lasts a fixed number of epochs, where the authors stop early. With `transfer_epochs = 0`,
which is not in the paper, a client begins with one revisit. With `data.augment`, scores are of plain images, and the
digest sees augmented ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from catchment.core.client import Client
from catchment.core.fleet import Fleet
from catchment.core.method import on_client
from catchment.core.server import Server
from catchment.core.world import World
from catchment.families.logits import Predictions, check_public, gather, predictions, public_of, public_subset
from catchment.families.own_models import OwnModels, Question, Trained
from catchment.learning.losses import task_loss, teachers_logits
from catchment.learning.steps import PerSample, loss_function
from catchment.reading import Count, Whole


@loss_function
def l1(outputs: Tensor, teacher: Tensor) -> Tensor:
    """Mean distance of the scores, both `[B, C]`."""
    return F.l1_loss(outputs, teacher)


@dataclass
class State:
    """The server remembers nothing."""


@dataclass(frozen=True)
class FedMD(OwnModels[State]):
    """Model distillation among clients."""

    aggregates: ClassVar[bool] = True
    client_epochs: Count = 1
    """Epochs of a revisit, on private data."""
    public_epochs: Count = 1
    """Epochs of a digest."""
    alignment: Count | None = 5000
    """Public samples that are scored in a round, drawn afresh; all if there are not more."""
    digest: Literal["l1", "kl"] = "l1"
    """The distance between scores: l1, or KL(mean || own) of their softmax."""
    transfer_epochs: Whole = 25
    """Epochs on the public data, then as many on private data, before a client's first round."""

    def check(self, world: World) -> None:
        """Public data must be there, with labels if clients begin with them."""
        check_public(world, "fedmd")
        if self.transfer_epochs:
            world.need_public_labels("fedmd trains on labels of public samples first, unless transfer_epochs = 0")

    def init(self, server: Server) -> State:
        """Nothing."""
        return State()

    def round(self, server: Server, state: State, fleet: Fleet) -> None:
        """Communicate, aggregate, distribute; digest and revisit are the clients'."""
        cohort = fleet.cohort()
        samples = len(public_subset(server, self.alignment))
        scores = gather(fleet, self.communicate, dict.fromkeys(cohort, Question()), samples)
        if scores is not None:
            consensus = Predictions(server.aggregator(scores, by_sample=True))
            fleet.tell(self.digest_and_revisit, dict.fromkeys(fleet.idle(cohort), consensus))

    @on_client
    def communicate(self, client: Client, request: Question) -> Predictions:
        """The class scores of this round's public samples; a client that has not begun does so first."""
        model, optimizer = client.own_model()
        if "model" not in client.state:
            transfer = client.batches(public_of(client), epochs=self.transfer_epochs)
            client.fit(task_loss, model, optimizer, transfer)
            private = client.batches(epochs=self.transfer_epochs or self.client_epochs)
            client.fit(task_loss, model, optimizer, private)
            client.keep(model, optimizer)
        return Predictions(predictions(client, model, public_subset(client, self.alignment)))

    @on_client
    def digest_and_revisit(self, client: Client, request: Predictions) -> Trained:
        """Approach the consensus on the public samples, then train on private data."""
        model, optimizer = client.own_model()
        samples = public_subset(client, self.alignment)
        approach = l1 if self.digest == "l1" else teachers_logits
        consensus = PerSample(request.logits, samples.ids)
        client.fit(approach, model, optimizer, client.batches(samples, epochs=self.public_epochs), teacher=consensus)
        loss = client.fit(task_loss, model, optimizer, client.batches(epochs=self.client_epochs))
        client.keep(model, optimizer)
        return Trained(loss)
