"""Cronus: Chang, Shejwalkar, Shokri, Houmansadr, Cronus: Robust and Heterogeneous Collaborative Learning, 2019.

Clients of any architecture exchange predictions of unlabelled public samples, and the server takes, sample by sample,
a robust mean of them: vectors far out along the direction in which they spread most are left out. Clients train on
their private data and on the public samples with these soft labels.

Departures: a client goes through the public and then through its private data, where the paper mixes both. The filter
is that of `catchment.robust.aggregators.Cronus`, whose bound is relative. The length of the phase before the first
round is an option; the paper's number is not known to us. With `data.augment`, predictions are of plain images, and
training sees augmented ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from catchment.core.client import Client
from catchment.core.fleet import Fleet
from catchment.core.method import on_client
from catchment.core.server import Server
from catchment.core.world import World
from catchment.families.logits import Predictions, check_public, gather, predictions, public_of
from catchment.families.own_models import OwnModels, Question, Trained
from catchment.learning.losses import soft_labels, task_loss
from catchment.learning.steps import PerSample
from catchment.reading import Count
from catchment.robust.aggregators import BelowHalf, Cronus as Filter


@dataclass
class State:
    """The server remembers nothing."""


@dataclass(frozen=True)
class Cronus(OwnModels[State]):
    """Robust exchange of soft labels."""

    client_epochs: Count = 1
    """Epochs on private data."""
    public_epochs: Count = 1
    """Epochs on public data and the aggregated soft labels."""
    start_epochs: Count = 1
    """Epochs on private data before a client's first round."""
    bound: Annotated[float, Field(ge=1)] = 4.0
    """The filter stops at this variance, over the squared usual deviation in the same direction."""
    most: BelowHalf = 0.4
    """The share of the clients that the filter may leave out."""

    @property
    def filter(self) -> Filter:
        """The robust mean."""
        return Filter(self.bound, self.most)

    def check(self, world: World) -> None:
        """Public data must be there."""
        check_public(world, "cronus")

    def init(self, server: Server) -> State:
        """Nothing."""
        return State()

    def round(self, server: Server, state: State, fleet: Fleet) -> None:
        """Collect predictions, aggregate them robustly, send the soft labels back."""
        cohort = fleet.cohort()
        came = gather(fleet, self.predict, dict.fromkeys(cohort, Question()), len(public_of(server)))
        if came is not None:
            soft_labels = Predictions(self.filter(came, by_sample=True))
            fleet.tell(self.local_training, dict.fromkeys(fleet.idle(cohort), soft_labels))

    @on_client
    def predict(self, client: Client, request: Question) -> Predictions:
        """Probabilities of the public samples; a client that has not begun trains on private data first."""
        model, optimizer = client.own_model()
        if "model" not in client.state:
            client.fit(task_loss, model, optimizer, client.batches(epochs=self.start_epochs))
            client.keep(model, optimizer)
        return Predictions(predictions(client, model, public_of(client)).softmax(1))

    @on_client
    def local_training(self, client: Client, request: Predictions) -> Trained:
        """Cross-entropy to the soft labels, then to the labels of private data."""
        model, optimizer = client.own_model()
        public = public_of(client)
        teacher = PerSample(request.logits, public.ids)
        client.fit(soft_labels, model, optimizer, client.batches(public, epochs=self.public_epochs), teacher=teacher)
        loss = client.fit(task_loss, model, optimizer, client.batches(epochs=self.client_epochs))
        client.keep(model, optimizer)
        return Trained(loss)
