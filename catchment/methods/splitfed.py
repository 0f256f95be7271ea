"""SplitFed: Thapa et al., SplitFed: When Federated Learning Meets Split Learning, AAAI 2022.

Split learning in which all clients work at once, and the extractors are averaged at the end of a round. In v2 there is
one server half, which takes the clients' batches in turn; in v1 each client has a copy of it, and these are averaged
too.

Departures: those of split learning, and
- In v2 the server takes the batches of a step in the order of the clients, where the paper draws an order.
- Clients may have unequal data: one that has done its batches waits for the others.
- The optimisers of what is averaged (extractors; server halves in v1) start afresh in every round, as in FedAvg: their
  state belongs to weights that are gone. In v2 the server's optimiser goes on.
- The steps that the server made with a client that is lost stay, but for those of its copy in v1.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from catchment.core.client import Client
from catchment.core.fleet import Fleet
from catchment.core.intake import Reply
from catchment.core.method import on_client
from catchment.core.server import Server
from catchment.learning.training import load_weights, tensors_of
from catchment.methods.split import (
    Extractor,
    Features,
    Gradient,
    Half,
    Split,
    State,
    Trained,
    Turn,
    begin_turn,
    end_turn,
    learn,
)


@dataclass(frozen=True)
class SplitFed(Split):
    """Split learning in parallel, with averaged extractors."""

    aggregates: ClassVar[bool] = True
    variant: Literal["v1", "v2"] = "v2"
    """A copy of the server half per client, averaged; or one for all."""

    def round(self, server: Server, state: State, fleet: Fleet) -> None:
        """Step by step with all clients; then the means, by samples, of those who came to the end."""
        state.model.train()
        cohort = fleet.cohort()
        halves = self.halves(server, state, cohort)
        end = fleet.now + fleet.deadline  # of the round
        turns = {client: Turn(server, client, self.client_epochs) for client in cohort}

        def accept(reply: Reply[Features]) -> str:
            return turns[reply.client].accept(reply)

        bodies = dict.fromkeys(cohort, Extractor(state.extractor))
        replies = fleet.ask(self.begin, bodies, in_order=True, accept=accept)
        done: dict[int, Gradient] = {}
        while True:
            going: dict[int, Gradient] = {}
            for reply in replies:
                among = done if reply.body.last else going
                among[reply.client] = learn(server, halves[reply.client], reply.body)
            if not going:
                break
            replies = fleet.ask(self.step, going, deadline=end - fleet.now, in_order=True, accept=accept)
        extractor, half = server.aggregator.running(), server.aggregator.running()
        ends = fleet.ask(self.finish, dict(sorted(done.items())), deadline=end - fleet.now, in_order=True)
        for trained in ends:
            extractor.add(trained.body.weights, weight=trained.body.samples)
            if self.variant == "v1":
                half.add(halves[trained.client].model.state_dict(), weight=trained.body.samples)
        if extractor.weight:
            state.extractor = extractor.value()
        if half.weight:
            load_weights(tensors_of(state.model), half.value(), "the server half")

    def halves(self, server: Server, state: State, cohort: Iterable[int]) -> dict[int, Half]:
        """The server half that each client works with: its own copy in v1, one for all in v2."""
        if self.variant == "v2":
            return dict.fromkeys(cohort, state.half)
        models = {client: copy.deepcopy(state.model) for client in cohort}
        return {client: Half(model, server.optimizer(model)) for client, model in models.items()}

    @on_client
    def begin(self, client: Client, request: Extractor) -> Features:
        """Take the mean extractor, with a fresh optimiser."""
        return begin_turn(client, request, {}, self.client_epochs)

    @on_client
    def finish(self, client: Client, request: Gradient) -> Trained:
        """The last step of the extractor; nothing stays on the client."""
        trained = end_turn(client, request)
        client.state = {}
        return trained
