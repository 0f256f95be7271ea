"""FedGKT: He, Annavaram, Avestimehr, Group Knowledge Transfer: Federated Learning of Large CNNs at the Edge, 2020.

Small CNNs train on the devices and send features and logits up; a large CNN trains on them at the server and sends its
logits back. The final model of client k is its extractor followed by the server's model; no client's weights travel.

Departures:
- Logits are matched by sample id. The authors' code pairs unrelated samples: batch numbers over shuffled loaders.
- Extractors train at a hundredth of the clients' learning rate, so that clients with unlike classes keep extractors
  that are alike; in the paper, and with `extractor_rate = 1`, they train at all of it.
- A sample has one teacher on the server, the client it belongs to, where equation 6 reads as a sum over clients.
- All extractors begin with one random stem, of which the paper says nothing; with `own_stems` each has its own. The
  authors' code copies them from a centrally trained ResNet-56: that is `models.weights`.
- Batches of the server mix clients, where Algorithm 1 goes from client to client.
- The server's logits that go back are those of its last epoch of training, each before its step, which costs nothing;
  Algorithm 1 takes them after it, with one more forward pass.
- Distillation is scaled by T squared, as in the authors' code; `alpha = 1 / T^2` is equations 6 and 7 as printed.
- An asynchronous run ends after as many uploads as a synchronous one, so that fast clients do more.
- `replay` is ours: an asynchronous server forgets the features of clients that it seldom hears.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from catchment.client.state import ClientState
from catchment.core.client import Client
from catchment.core.declarations import Share, features, ids, labels, logits
from catchment.core.fleet import Fleet
from catchment.core.intake import Reply
from catchment.core.method import Method, Metrics, on_client
from catchment.core.server import Server
from catchment.core.world import World
from catchment.data import Batch
from catchment.exchange.payload import Payload
from catchment.families.features import FeatureStore, ahead, check_half, first_weights
from catchment.families.own_models import Scored
from catchment.learning.losses import distillation
from catchment.learning.steps import PerSample, loss_function
from catchment.randomness import torch_generator
from catchment.reading import Count, NonNegative, Positive


@dataclass(frozen=True)
class Feedback(Payload):
    """The server's logits for a client's samples, down; nothing before the first transfer."""

    logits: Tensor | None = None  # z_s, [N_k, C]
    ids: Tensor | None = None  # [N_k], ascending
    start: dict[str, Tensor] | None = None  # of `models.weights`, for a client that has not begun


@dataclass(frozen=True)
class Knowledge(Payload):
    """What a client knows of its samples, up."""

    features: Annotated[Tensor, features("N_k")]  # H
    logits: Annotated[Tensor, logits("N_k")]  # z_k
    labels: Annotated[Tensor, labels("N_k")]  # y_k
    ids: Annotated[Tensor, ids("N_k")]  # ascending


@dataclass(frozen=True)
class ServerModel(Payload):
    """The server's model, down, to be evaluated where it will run."""

    weights: dict[str, Tensor]
    start: dict[str, Tensor] | None = None  # as in `Feedback`


@dataclass(frozen=True)
class Tested(Scored):
    """One client on the test set: its extractor followed by the server's model."""

    edge: Share  # accuracy of its small model alone


@loss_function
def loss(outputs: Tensor, labels: Tensor, teacher: Tensor | None = None, *, alpha: float, temperature: float) -> Tensor:
    """Equations 6 and 7: cross-entropy, and distillation from the logits of the other side, where there are any."""
    value = F.cross_entropy(outputs, labels)
    return value if teacher is None else value + alpha * distillation(outputs, teacher, temperature)


@dataclass
class State:
    """What the server remembers."""

    model: nn.Module  # f_s
    optimizer: torch.optim.Optimizer
    store: FeatureStore  # H, y_k
    z_k: dict[int, Tensor] = field(default_factory=dict)  # by client, [N_k, C]
    z_s: dict[int, Tensor] = field(default_factory=dict)  # the same; zeros before the first answers
    turns: dict[int, int] = field(default_factory=dict)  # by client: how often it was asked


@dataclass(frozen=True)
class FedGKT(Method[State]):
    """Group knowledge transfer."""

    models: ClassVar[tuple[str, ...]] = ("model",)
    moving_average: ClassVar[float] = 0.99
    persistent: ClassVar[tuple[str, ...]] = ("model", "optimizer")
    takes_features: ClassVar[bool] = True
    client_epochs: Count = 1
    """E_c: epochs of a client per round."""
    server_epochs: Count = 1
    """E_s: epochs of the server per round."""
    temperature: Positive = 3.0
    """T of the softmax in distillation."""
    alpha: NonNegative = 1.0
    """The weight of the distillation terms, each T^2 KL."""
    extractor_rate: NonNegative = 0.01
    """The share of the clients' learning rate that their extractors have; in the paper 1."""
    distill: Literal["none", "server-to-edge", "both"] = "both"
    """Who learns from logits: nobody, the clients, or everybody."""
    asynchronous: bool = False
    """Train on each upload when it comes, answer at once, wait for nobody."""
    replay: NonNegative = 0.0
    """Samples of clients that sent nothing now, for each sample that came, to train on again."""
    own_stems: bool = False
    """Every client begins with another random extractor."""

    def check(self, world: World) -> None:
        """A server half that fits every client's features, and tests on the clients."""
        check_half(world, "fedgkt")
        world.check_tests("fedgkt")

    @property
    def sends(self) -> bool:
        """With `asynchronous`."""
        return self.asynchronous

    @property
    def rate_shares(self) -> Mapping[str, float]:
        """Extractors change slowly: with data that are not IID those of fast ones drift away from each other."""
        return {"extractor": self.extractor_rate}

    def init(self, server: Server) -> State:
        """A fresh server model."""
        model = server.model()
        return State(model, server.optimizer(model), FeatureStore.of(server))

    # ---- Algorithm 1, the server ----

    def round(self, server: Server, state: State, fleet: Fleet) -> None:
        """Local training in parallel, server training on all uploads, transfer back.

        An asynchronous round is as many uploads as there are clients, each answered at once.
        """

        def accept(reply: Reply[Knowledge]) -> str:
            return state.store.refusal(server.world, reply.client, reply.body.ids)

        def feedback(clients: Sequence[int]) -> dict[int, Feedback]:
            return {k: self.feedback(server, state, k) for k in clients}

        if not self.asynchronous:
            replies = fleet.ask(self.local_training, feedback(fleet.cohort()), accept=accept)
            if came := sorted(self.keep(state, reply) for reply in replies):
                self.train_server(server, state, came)
            return
        fleet.send(self.local_training, feedback(fleet.idle()))
        for reply in fleet.arrivals(self.local_training, count=server.clients, accept=accept):
            k = self.keep(state, reply)
            self.train_server(server, state, [k])
            fleet.send(self.local_training, feedback([k]))

    def feedback(self, server: Server, state: State, client: int) -> Feedback:
        """What a client is told before it trains."""
        state.turns[client] = state.turns.get(client, 0) + 1
        if client not in state.z_s:
            return Feedback(start=server.client_architecture(client).fitting or None)
        return Feedback() if self.distill == "none" else Feedback(state.z_s[client], state.store.ids[client])

    def keep(self, state: State, reply: Reply[Knowledge]) -> int:
        """Put an upload into the store; whose it is."""
        k, h = reply.client, reply.body
        state.store.put(k, h.ids, h.features, h.labels)
        state.z_k[k], state.z_s[k] = h.logits, torch.zeros_like(h.logits)
        return k

    def train_server(self, server: Server, state: State, clients: Sequence[int]) -> None:
        """E_s epochs of equation 8; the logits of the last one go back."""
        others = [k for k in sorted(state.z_k) if self.replay and k not in clients]
        everybody = [*clients, *others]
        z_k, z_s = (torch.cat([z[k] for k in everybody]) for z in (state.z_k, state.z_s))

        def answered(rows: Tensor, outputs: Tensor) -> None:
            z_s[rows] = outputs

        server.fit(
            loss,
            state.model.train(),
            state.optimizer,
            ahead(self.epochs(server, state, clients, others), server.device),
            teacher=PerSample(z_k) if self.distill == "both" else None,
            alpha=self.alpha,
            temperature=self.temperature,
            observe=answered,
        )
        rows = z_s.split_with_sizes([len(state.z_s[k]) for k in everybody])
        state.z_s |= {k: answers.clone() for k, answers in zip(everybody, rows)}
        if not self.replay:
            state.store.clear()

    def epochs(self, server: Server, state: State, clients: Sequence[int], others: Sequence[int]) -> Iterator[Batch]:
        """E_s epochs over what these clients sent, and some of what others sent before."""
        first, size = clients[0], server.settings.batch_size
        turn = state.turns.get(first, 0)
        uploads = (turn,) if self.asynchronous else ()  # of one client there may be several in a round
        for epoch in range(self.server_epochs):
            shuffle = torch_generator(server.seed("shuffle", epoch, first, *uploads))
            again = torch_generator(server.seed("replay", epoch, first, turn))
            yield from state.store.epoch(clients, others, size=size, shuffle=shuffle, replay=self.replay, again=again)

    # ---- Algorithm 1, ClientLocalTraining ----

    @on_client
    def local_training(self, client: Client, request: Feedback) -> Knowledge:
        """E_c epochs of equation 10, then features and logits of every sample."""
        self.begin(client, request.start)
        model, optimizer = client.own_model()
        client.fit(
            loss,
            model,
            optimizer,
            client.batches(epochs=self.client_epochs),
            teacher=None if request.logits is None else PerSample(request.logits, request.ids),
            alpha=self.alpha,
            temperature=self.temperature,
        )
        client.keep(model, optimizer)
        return knowledge(client, model.eval())

    def begin(self, client: Client, start: dict[str, Tensor] | None) -> None:
        """Give a client that has not begun its first weights."""
        if "model" not in client.state:
            weights = first_weights(client.world, client.id, start, own=self.own_stems)
            client.state = {**client.state, "model": weights}

    # ---- what comes out ----

    def evaluate(self, server: Server, state: State, fleet: Fleet) -> Metrics:
        """Each client runs its final model, where it is: the server's model travels, booked apart."""
        weights, kinds = state.model.state_dict(), server.client_architectures  # dealt in turn
        begun, new = ServerModel(weights), [ServerModel(weights, kind.fitting or None) for kind in kinds]
        bodies = {k: begun if k in state.z_s else new[k % len(kinds)] for k in fleet.measured()}
        with fleet.aside("evaluation"):
            replies = list(fleet.ask(self.test, bodies, in_order=True))
        edge = fmean(reply.body.edge for reply in replies) if replies else 0.0
        return Metrics.of_clients(
            {reply.client: reply.body.quality for reply in replies},
            more={"edge_accuracy": edge},
            self_reported=("accuracy", "clients"),
        )

    @on_client
    def test(self, client: Client, request: ServerModel) -> Tested:
        """The stacked model and the small model on the test set."""
        self.begin(client, request.start)
        edge = client.kept_model()
        stacked = nn.Sequential(edge.get_submodule("extractor"), client.server_model(request.weights))
        return Tested.of(client.evaluate(stacked).quality, edge=client.evaluate(edge).accuracy)

    def client_model(self, server: Server, state: State, client: int, kept: ClientState) -> nn.Module:
        """The client's extractor followed by the server's model."""
        if "model" not in kept:
            start = server.client_architecture(client).fitting
            kept = {"model": first_weights(server.world, client, start, own=self.own_stems)}
        extractor = server.kept_model(client, kept).get_submodule("extractor")
        return nn.Sequential(OrderedDict(extractor=extractor, server=state.model))

    def server_model(self, server: Server, state: State) -> nn.Module:
        """The server's half, which takes features."""
        return state.model


def knowledge(client: Client, model: nn.Module) -> Knowledge:
    """H and z_k of all samples, in the order of ids; augmented afresh, as they were trained on."""
    extractor, classifier = model.get_submodule("extractor"), model.get_submodule("classifier")
    shape, samples = client.architecture.facts.features or (), client.train
    h, z_k = [torch.empty(0, *shape)], [torch.empty(0, client.classes)]
    with torch.no_grad():
        for batch in client.batches(shuffle=False):
            maps = extractor(batch.images)
            h.append(maps.cpu())
            z_k.append(classifier(maps).cpu())
    return Knowledge(torch.cat(h), torch.cat(z_k), samples.targets, samples.ids)
