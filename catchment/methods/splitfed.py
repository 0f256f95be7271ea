"""SplitFed: Thapa et al., SplitFed: When Federated Learning Meets Split Learning, AAAI 2022.

Split learning with all clients at once: each trains an extractor f_e of its own, batch by batch with the server half
f_s, and the extractors are averaged at the end of a round. In v2 there is one server half, which takes the clients'
batches in turn; in v1 each client has a copy of it, and the copies are averaged too.

Departures:
- In v2 the server takes the batches of a step in the order of the clients, where the paper draws an order.
- Clients may have unequal data: one that has done its batches waits for the others.
- The optimisers of what is averaged (extractors; server halves in v1) start afresh in every round, as in FedAvg: their
  state belongs to weights that are gone. In v2 the server's optimiser goes on.
- The features of a batch are made a second time when their gradient comes, because nothing but declared state lives
  between two messages. They are the same; the clock and the count of work have one forward pass more.
- A client that is lost on the way is left out of the means. In v2 the steps that the server made with it stay.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import nn

from catchment.client import Client, ClientState
from catchment.errors import ExperimentError, at_least
from catchment.fleet import Fleet
from catchment.method import Method, Metrics, on_client
from catchment.server import Server
from catchment.splitting import (
    KEPT,
    Extractor,
    Features,
    Gradient,
    SplitState,
    Trained,
    begin_turn,
    check_halves,
    continue_turn,
    end_turn,
    evaluate_stacked,
    first_state,
    learn,
    most_steps,
    stacked,
)
from catchment.training import load_weights, tensors_of
from catchment.world import World


class Half(NamedTuple):
    """A server half and its optimiser."""

    model: nn.Module
    optimizer: torch.optim.Optimizer


@dataclass(frozen=True)
class SplitFed(Method[SplitState]):
    """Split learning in parallel, with averaged extractors."""

    persistent: ClassVar[tuple[str, ...]] = KEPT
    takes_features: ClassVar[bool] = True
    aggregates: ClassVar[bool] = True
    client_epochs: int = 1
    variant: Literal["v1", "v2"] = "v2"

    def __post_init__(self) -> None:
        at_least("client_epochs", self.client_epochs, 1)
        if self.variant not in ("v1", "v2"):
            raise ExperimentError(f'variant is "{self.variant}"; "v1" or "v2" is expected')

    def check(self, world: World) -> None:
        """Extractors that can be averaged, and a server half that fits them."""
        check_halves(world, "splitfed")

    def init(self, server: Server) -> SplitState:
        """Both halves with their first weights."""
        return first_state(server)

    def round(self, server: Server, state: SplitState, fleet: Fleet) -> None:
        """Step by step with all clients; then the means, by samples, of those who came to the end."""
        state.model.train()
        cohort = fleet.cohort()
        halves = self.halves(server, state, cohort)
        end = fleet.now + fleet.deadline  # of the round
        steps = {client: most_steps(server.world, client, self.client_epochs) for client in cohort}
        replies = fleet.ask(self.begin, dict.fromkeys(cohort, Extractor(state.extractor)), in_order=True)
        done: dict[int, Gradient] = {}
        while True:
            going: dict[int, Gradient] = {}
            for reply in replies:
                steps[reply.client] -= 1
                down = learn(server, *halves[reply.client], reply.body)
                if reply.body.last:
                    done[reply.client] = down
                elif steps[reply.client]:
                    going[reply.client] = down
                else:
                    fleet.refuse(reply, "it sends more batches than it has")
            if not going:
                break
            replies = fleet.ask(self.step, going, deadline=end - fleet.now, in_order=True)
        extractor, half = server.aggregator.running(), server.aggregator.running()
        ends = fleet.ask(self.finish, dict(sorted(done.items())), deadline=end - fleet.now, in_order=True)
        for trained in ends:
            extractor.add(trained.body.weights, trained.body.samples)
            if self.variant == "v1":
                half.add(halves[trained.client].model.state_dict(), trained.body.samples)
        if extractor.weight:
            state.extractor = extractor.value()
        if half.weight:
            load_weights(tensors_of(state.model), half.value(), "the server half")

    def halves(self, server: Server, state: SplitState, cohort: Iterable[int]) -> dict[int, Half]:
        """The server half that each client works with: its own copy in v1, one for all in v2."""
        if self.variant == "v2":
            return dict.fromkeys(cohort, Half(state.model, state.optimizer))
        models = {client: copy.deepcopy(state.model) for client in cohort}
        return {client: Half(model, server.optimizer(model)) for client, model in models.items()}

    @on_client
    def begin(self, client: Client, request: Extractor) -> Features:
        """Take the mean extractor, with a fresh optimiser."""
        return begin_turn(client, request, {}, self.client_epochs)

    @on_client
    def step(self, client: Client, request: Gradient) -> Features:
        """One step of the extractor, then the next batch."""
        return continue_turn(client, request, self.client_epochs)

    @on_client
    def finish(self, client: Client, request: Gradient) -> Trained:
        """The last step of the extractor; nothing stays on the client."""
        trained = end_turn(client, request)
        client.state = {}
        return trained

    def evaluate(self, server: Server, state: SplitState, fleet: Fleet) -> Metrics:
        """The mean extractor followed by the server half, which is every client's too."""
        return evaluate_stacked(server, state)

    def client_model(self, server: Server, state: SplitState, client: int, kept: ClientState) -> nn.Module:
        """The mean extractor followed by the server half, for everybody."""
        return stacked(server, state)

    def server_model(self, server: Server, state: SplitState) -> nn.Module:
        """The same."""
        return stacked(server, state)
