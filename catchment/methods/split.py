"""Split learning: Gupta, Raskar, Distributed learning of deep neural network over multiple agents, JNCA 2018;
Vepakomma et al., Split learning for health: Distributed deep learning without sharing raw patient data, 2018.

The device holds the first layers f_e, the server the rest f_s. For every batch, features H and labels go up, the
server steps at once, and dL/dH comes down. Clients work one after another, each from the extractor of the one before.

Departures:
- Extractors are handed over through the server. The paper's clients may also pass them on directly; the bytes are the
  same, and are booked.
- Only weights (and buffers) are handed over. A client's optimiser state stays with it, and waits for its next turn.
- The features of a batch are made a second time when their gradient comes, because nothing but declared state lives
  between two messages. They are the same; the clock and the count of work have one forward pass more.
- A client that is lost in its turn leaves no trace in the extractor. The steps that the server made with it stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from catchment.client import Client, ClientState
from catchment.errors import at_least
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
from catchment.world import World


@dataclass(frozen=True)
class Split(Method[SplitState]):
    """Split learning."""

    persistent: ClassVar[tuple[str, ...]] = KEPT
    takes_features: ClassVar[bool] = True
    client_epochs: int = 1  # a turn

    def __post_init__(self) -> None:
        at_least("client_epochs", self.client_epochs, 1)

    def check(self, world: World) -> None:
        """One extractor that goes from client to client, and a server half that fits it."""
        check_halves(world, "split")

    def init(self, server: Server) -> SplitState:
        """Both halves with their first weights."""
        return first_state(server)

    def round(self, server: Server, state: SplitState, fleet: Fleet) -> None:
        """A turn for every client of the cohort; one that is lost or refused hands nothing over."""
        state.model.train()
        for client in fleet.cohort():
            end = fleet.now + fleet.deadline  # of the turn
            steps = most_steps(server.world, client, self.client_epochs)
            reply = next(fleet.ask(self.begin, {client: Extractor(state.extractor)}), None)
            while reply is not None:
                down, steps = learn(server, state.model, state.optimizer, reply.body), steps - 1
                if reply.body.last:
                    for trained in fleet.ask(self.finish, {client: down}, deadline=end - fleet.now):
                        state.extractor = trained.body.weights
                    break
                if not steps:
                    fleet.refuse(reply, "it sends more batches than it has")
                    break
                reply = next(fleet.ask(self.step, {client: down}, deadline=end - fleet.now), None)

    @on_client
    def begin(self, client: Client, request: Extractor) -> Features:
        """Take over the extractor, go on with the client's own optimiser."""
        return begin_turn(client, request, client.state.get("optimizer", {}), self.client_epochs)

    @on_client
    def step(self, client: Client, request: Gradient) -> Features:
        """One step of the extractor, then the next batch."""
        return continue_turn(client, request, self.client_epochs)

    @on_client
    def finish(self, client: Client, request: Gradient) -> Trained:
        """The last step of the extractor, which then leaves; the optimiser stays."""
        trained = end_turn(client, request)
        client.state = {"optimizer": client.state["optimizer"]}
        return trained

    def evaluate(self, server: Server, state: SplitState, fleet: Fleet) -> Metrics:
        """The one stacked model, which is every client's too."""
        return evaluate_stacked(server, state)

    def client_model(self, server: Server, state: SplitState, client: int, kept: ClientState) -> nn.Module:
        """The extractor followed by the server half, for everybody."""
        return stacked(server, state)

    def server_model(self, server: Server, state: SplitState) -> nn.Module:
        """The same."""
        return stacked(server, state)
