"""FedGKT: He, Annavaram, Avestimehr, Group Knowledge Transfer: Federated Learning of Large CNNs at the Edge, 2020.

Small CNNs train on the devices and send features and logits up; a large CNN trains on them at the server and sends its
logits back. The final model of client k is its extractor followed by the server's model; no client's weights travel.

Departures:
- Logits are matched by sample id. The authors' code matches them by batch number over shuffled loaders, which pairs
  unrelated samples.
- A sample has one teacher on the server, the client it belongs to, where equation 6 reads as a sum over clients.
- All extractors begin with one random stem. The authors' code copies them from a centrally trained ResNet-56, which the
  paper does not mention; here that is `models.weights`. `stem_epochs` trains the stem on public data first, which is no
  setting of `[models]`: only here do clients share an extractor and nothing else.
- Batches of the server mix clients; `batches = "by-client"` is the paper's loop.
- The server's logits that go back are those of its last epoch of training, each before its step, which costs nothing;
  `answers = "after"` takes them after it, as Algorithm 1 does, with one more forward pass.
- Distillation is scaled by T squared, as in the authors' code; without `squared_temperature` there is no factor, as in
  equations 6 and 7.
- An asynchronous run weighs all uploads alike, as the paper has none; `rarity` weighs those of slow clients more.
- An asynchronous run ends after as many uploads as a synchronous one, so that fast clients do more; with `quota` every
  client does its rounds, and the run waits for the slowest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from catchment.core.client import Client
from catchment.core.declarations import Share, Turn, features, ids, labels, logits
from catchment.core.fleet import Fleet
from catchment.core.method import Method, Metrics, on_client
from catchment.core.replies import Reply
from catchment.core.server import Server
from catchment.core.versions import ClientState
from catchment.core.world import World
from catchment.data import Batch
from catchment.errors import ExperimentError, ModelError, at_least
from catchment.exchange.payload import Payload
from catchment.families.features import FeatureStore
from catchment.families.stems import extractor_of, first_weights, trained_stem
from catchment.learning.losses import cross_entropy, distillation
from catchment.learning.training import Weights, fit, load_weights, tensors_of
from catchment.models import check_pair
from catchment.randomness import torch_generator

MOST_WEIGHT = 10.0  # of an upload: what a client sends that was away for long must not be one giant step


@dataclass(frozen=True)
class Feedback(Payload):
    """The server's logits for a client's samples, down; nothing before the first transfer."""

    logits: Tensor | None = None  # z_s, [N_k, C]
    ids: Tensor | None = None  # [N_k], ascending
    start: dict[str, Tensor] | None = None  # weights to begin with, where they are not the random ones that all know
    upload: bool = True  # features are wanted this time
    turn: int = 0  # how often the client was asked
    holds: int = 0  # the turn of the upload that the server has; 0: none


@dataclass(frozen=True)
class Knowledge(Payload):
    """What a client knows of its samples, up: all N_k of them, or fewer if the server has the others already."""

    features: Annotated[Tensor, features("n <= N_k")]  # H
    logits: Annotated[Tensor, logits("n <= N_k")]  # z_k
    labels: Annotated[Tensor, labels("n <= N_k")]  # y_k
    ids: Annotated[Tensor, ids("n <= N_k")]  # ascending
    turn: Turn = 0
    beside: Turn = 0  # what is not here is as in the upload of that turn


@dataclass(frozen=True)
class ServerModel(Payload):
    """The server's model, down, to be evaluated where it will run."""

    weights: dict[str, Tensor]
    start: dict[str, Tensor] | None = None  # for a client that has not begun


@dataclass(frozen=True)
class Accuracies(Payload):
    """Of one client on the test set."""

    stacked: Share  # its extractor followed by the server's model
    edge: Share  # its small model alone


@dataclass
class State:
    """What the server remembers."""

    model: nn.Module  # f_s
    optimizer: torch.optim.Optimizer
    store: FeatureStore  # H, y_k, z_k and z_s
    stem: Weights = field(default_factory=dict)  # that the extractors begin with; empty: the random one that all know
    turns: dict[int, int] = field(default_factory=dict)  # by client: how often it was asked


@dataclass(frozen=True)
class FedGKT(Method[State]):
    """Group knowledge transfer."""

    models: ClassVar[tuple[str, ...]] = ("model",)
    persistent: ClassVar[tuple[str, ...]] = ("model", "optimizer", "sent")
    takes_features: ClassVar[bool] = True
    client_epochs: int = 1  # E_c
    server_epochs: int = 1  # E_s
    temperature: float = 3.0  # T
    alpha: float = 1.0  # weight of the distillation terms
    squared_temperature: bool = True  # they are multiplied by T squared
    distill: Literal["none", "server-to-edge", "both"] = "both"
    asynchronous: bool = False  # train on each upload when it comes, answer at once, wait for nobody
    quota: bool = False  # asynchronous: no client does more than its rounds
    rarity: float = 0.0  # asynchronous: how much more an upload weighs in the server's loss if its client sends few
    batches: Literal["mixed", "by-client"] = "mixed"  # of the server
    answers: Literal["training", "after"] = "training"  # z_s of the last epoch, or of one more pass in evaluation mode
    replay: float = 0.0  # samples of clients that sent nothing now, for each sample that came, to train on again
    augment_features: bool = True  # extract from augmented images, as trained on; otherwise from plain ones
    stem_epochs: int = 0  # of the stem that all begin with, on public data, before the first round
    upload_every: int = 1  # turns of a client; in between the server trains on the features it has
    skip_below: float = 0.0  # relative change of a sample's features under which they are not sent again

    def __post_init__(self) -> None:
        for name in ("client_epochs", "server_epochs", "upload_every"):
            at_least(name, getattr(self, name), 1)
        for name in ("alpha", "skip_below", "replay", "stem_epochs", "rarity"):
            at_least(name, getattr(self, name), 0)
        if not self.temperature > 0:
            raise ExperimentError(f"temperature is {self.temperature}; a number above 0 is expected")
        if self.replay and self.batches == "by-client":
            raise ExperimentError('replay mixes what came with what is there; it goes with batches = "mixed"')
        for name in ("quota", "rarity"):
            if getattr(self, name) and not self.asynchronous:
                raise ExperimentError(f"{name} is for asynchronous = true; synchronous clients all do their rounds")

    def check(self, world: World) -> None:
        """Every client's extractor must fit the server's model, and the stem if one is given."""
        if world.server_model is None:
            raise ModelError("fedgkt trains a server half on features; set models.server, such as resnet19")
        world.check_tests("fedgkt")
        for edge in dict.fromkeys(world.client_architectures):
            half = world.server_architecture
            check_pair(edge.build(), half.build(), edge.shape, world.classes, edge.name, half.name)
        if self.stem_epochs:
            world.need_public_labels("stem_epochs trains the stem on public samples and their labels")
            stem = extractor_of(world.client_architectures[0].facts.initial)
            for edge in dict.fromkeys(world.client_architectures):
                load_weights(extractor_of(tensors_of(edge.build())), stem, f"the extractor of {edge.name}")
        if self.skip_below and world.augment and self.augment_features:
            raise ExperimentError(
                "skip_below finds nothing to skip: features of freshly augmented images change every time; set "
                "augment_features = false"
            )

    @property
    def sends(self) -> bool:
        """With `asynchronous`."""
        return self.asynchronous

    @property
    def weight(self) -> float:
        """Of `distillation`, which has the factor T squared."""
        return self.alpha if self.squared_temperature else self.alpha / self.temperature**2

    def init(self, server: Server) -> State:
        """A fresh server model."""
        model = server.model()
        return State(model, server.optimizer(model), FeatureStore.of(server))

    def round(self, server: Server, state: State, fleet: Fleet) -> None:
        """Algorithm 1: local training in parallel, server training on all uploads, transfer back."""
        if server.round == 1 and self.stem_epochs:
            state.stem = trained_stem(server, self.stem_epochs)
        if self.asynchronous:
            self.asynchronous_round(server, state, fleet)
            return
        bodies = {k: self.feedback(server, state, k) for k in fleet.cohort()}
        replies = fleet.ask(self.local_training, bodies, accept=self.accept(server, state))
        came = sorted(self.keep(state, reply) for reply in replies)
        if came:
            self.train_server(server, state, came)

    def asynchronous_round(self, server: Server, state: State, fleet: Fleet) -> None:
        """As many uploads as there are clients, whoever they come from; each is answered at once."""

        def send(clients: Sequence[int]) -> None:
            wanted = [k for k in clients if not self.quota or state.turns.get(k, 0) < server.rounds]
            fleet.send(self.local_training, {k: self.feedback(server, state, k) for k in wanted})

        send(fleet.idle())
        uploads, accept = server.world.clients, self.accept(server, state)
        for reply in fleet.arrivals(self.local_training, count=uploads, accept=accept):
            self.train_server(server, state, [self.keep(state, reply)])
            send([reply.client])

    # ---- the server ----

    def start(self, world: World, state: State, client: int) -> Weights | None:
        """Weights that a client begins with and cannot make itself; None if there are none."""
        return {**world.client_architecture(client).fitting, **state.stem} or None

    def feedback(self, server: Server, state: State, client: int) -> Feedback:
        """What a client is told before it trains."""
        turn = state.turns[client] = state.turns.get(client, 0) + 1
        store = state.store
        begun = client in store.turns
        told = begun and self.distill != "none"
        return Feedback(
            logits=store.answers[client] if told else None,
            ids=store.ids[client] if told else None,
            start=None if begun else self.start(server.world, state, client),
            upload=not begun or (turn - 1) % self.upload_every == 0,
            turn=turn,
            holds=store.turns.get(client, 0),
        )

    def accept(self, server: Server, state: State) -> Callable[[Reply[Knowledge]], str]:
        """Why an upload cannot be used; nothing if it can."""
        data = server.world.data

        def refusal(reply: Reply[Knowledge]) -> str:
            dealt = None if data.own else data.clients[reply.client]
            return state.store.refusal(reply.client, reply.body.ids, reply.body.beside, dealt)

        return refusal

    def keep(self, state: State, reply: Reply[Knowledge]) -> int:
        """Put an upload into the store; whose it is."""
        upload = reply.body
        state.store.put(reply.client, upload.ids, upload.features, upload.labels, upload.logits, upload.turn)
        return reply.client

    def train_server(self, server: Server, state: State, clients: Sequence[int]) -> None:
        """E_s epochs of equation 8; the logits of the last epoch, or those after it, go back."""
        store, device = state.store, server.world.device
        others = [k for k in sorted(store.turns) if self.replay and k not in clients]
        everybody = [*clients, *others]
        z_k, z_s = store.rows(store.logits, everybody), store.rows(store.answers, everybody)
        weights = self.sample_weights(state, clients, others)

        def l_s(batch: Batch) -> Tensor:  # equation 6
            logits = state.model(batch.images)
            z_s[batch.ids] = logits.detach().cpu()
            w = None if weights is None else weights[batch.ids].to(device)
            loss = cross_entropy(logits, batch.labels, w)
            if self.distill == "both":
                loss = loss + self.weight * distillation(logits, z_k[batch.ids].to(device), self.temperature, w)
            return loss

        state.model.train()
        fit(state.optimizer, self.server_batches(server, state, clients, others), l_s)
        if self.answers == "after":
            with torch.no_grad():
                state.model.eval()
                for batch in store.in_order(clients, server.world.server_optimizer.batch_size):
                    z_s[batch.ids] = state.model(batch.images.to(device)).cpu()
        store.answer(everybody, z_s)
        if self.upload_every == 1 and not self.skip_below and not self.replay:
            store.forget_features()

    def sample_weights(self, state: State, clients: Sequence[int], others: Sequence[int]) -> Tensor | None:
        """Of the samples that came: (mean turns of all clients / turns of the client) ^ rarity; of others' 1."""
        if not self.rarity:
            return None
        mean = fmean(state.turns.values())
        weights = {k: min((mean / state.turns[k]) ** self.rarity, MOST_WEIGHT) for k in clients}
        return torch.cat([torch.full((len(state.store.ids[k]),), weights.get(k, 1.0)) for k in [*clients, *others]])

    def server_batches(
        self, server: Server, state: State, clients: Sequence[int], others: Sequence[int]
    ) -> Iterator[Batch]:
        """E_s epochs over what these clients sent, and some of what others sent before."""
        world, first = server.world, clients[0]
        turn = state.turns.get(first, 0)
        uploads = (turn,) if self.asynchronous else ()  # of one client there may be several in a round
        for epoch in range(self.server_epochs):
            for batch in state.store.epoch(
                clients,
                others,
                size=world.server_optimizer.batch_size,
                mixed=self.batches == "mixed",
                replay=self.replay,
                shuffle=torch_generator(server.seed("shuffle", epoch, first, *uploads)),
                again=torch_generator(server.seed("replay", epoch, first, turn)),
            ):
                yield Batch(batch.images.to(world.device), batch.labels.to(world.device), batch.ids)

    # ---- the client ----

    @on_client
    def local_training(self, client: Client, request: Feedback) -> Knowledge:
        """ClientLocalTraining: E_c epochs of equation 10, then features and logits of every sample."""
        self.begin(client, request.start)
        model, optimizer = client.own_model()
        fit(optimizer, client.batches(epochs=self.client_epochs), self.l_c(model, request))
        knowledge = self.extract(client, model.eval(), request)
        client.keep(model, optimizer)
        if self.skip_below and request.upload:
            knowledge, sent = self.skip(knowledge, client.state.get("sent", {}), request.holds)
            client.state = {**client.state, "sent": sent}
        return knowledge

    def begin(self, client: Client, start: Weights | None) -> None:
        """Give a client that has not begun its first weights."""
        if "model" not in client.state:
            client.state = {**client.state, "model": first_weights(client.world, client.id, start)}

    def l_c(self, model: nn.Module, feedback: Feedback) -> Callable[[Batch], Tensor]:
        """Equation 7: cross-entropy, and distillation from the server once it has answered."""
        z_s, ids = feedback.logits, feedback.ids

        def loss(batch: Batch) -> Tensor:
            logits = model(batch.images)
            value = F.cross_entropy(logits, batch.labels)
            if self.distill == "none" or z_s is None or ids is None:
                return value
            teacher = z_s[torch.searchsorted(ids, batch.ids.cpu())].to(logits.device)
            return value + self.weight * distillation(logits, teacher, self.temperature)

        return loss

    def extract(self, client: Client, model: nn.Module, request: Feedback) -> Knowledge:
        """H and z_k of every sample of a client, in the order of ids; of none if the server wants none."""
        parts = []
        samples = client.train if request.upload else client.train.select(torch.arange(0))
        with torch.no_grad():
            for batch in client.batches(samples, shuffle=False, augment=self.augment_features):
                features = model.get_submodule("extractor")(batch.images)
                parts.append((features, model.get_submodule("classifier")(features), batch.labels, batch.ids))
        if not parts:
            shape = client.world.client_architecture(client.id).facts.features or ()
            nothing = torch.empty(0, dtype=torch.int64)
            parts.append((torch.empty(0, *shape), torch.empty(0, client.world.classes), nothing, nothing))
        features, logits, labels, ids = (torch.cat(tensors) for tensors in zip(*parts))
        return Knowledge(features, logits, labels, ids, request.turn, 0 if request.upload else request.holds)

    def skip(self, new: Knowledge, sent: dict[str, Tensor], holds: int) -> tuple[Knowledge, dict[str, Tensor]]:
        """Only the samples whose features moved, and what the server has after it took them."""
        features = new.features.cpu()
        after = {"features": features, "turn": torch.tensor(new.turn)}
        if not sent or int(sent["turn"]) != holds:
            return new, after
        old = sent["features"]
        moved = (features - old).flatten(1).norm(dim=1) > self.skip_below * old.flatten(1).norm(dim=1)
        if not bool(moved.any()):
            after = sent
        else:
            after["features"] = torch.where(moved.view(-1, *[1] * (features.ndim - 1)), features, old)
        few = [tensor.cpu()[moved] for tensor in (features, new.logits, new.labels, new.ids)]
        return Knowledge(few[0], few[1], few[2], few[3], new.turn, holds), after

    # ---- what comes out ----

    def evaluate(self, server: Server, state: State, fleet: Fleet) -> Metrics:
        """Each client runs its final model, where it is: the server's model travels, booked apart."""
        weights, world = state.model.state_dict(), server.world
        kinds = len(world.client_architectures)  # dealt in turn
        begun, new = ServerModel(weights), [ServerModel(weights, self.start(world, state, k)) for k in range(kinds)]
        bodies = {k: begun if k in state.store.turns else new[k % kinds] for k in fleet.clients()}
        with fleet.aside("evaluation"):
            replies = list(fleet.ask(self.test, bodies, in_order=True))
        clients = {reply.client: reply.body.stacked for reply in replies}
        edge = fmean(reply.body.edge for reply in replies) if replies else 0.0
        return Metrics(
            fmean(clients.values()) if clients else 0.0,
            clients=clients,
            more={"edge_accuracy": edge},
            self_reported=("accuracy", "clients"),
        )

    @on_client
    def test(self, client: Client, request: ServerModel) -> Accuracies:
        """The stacked model and the small model on the test set."""
        self.begin(client, request.start)
        edge = client.kept_model()
        stacked = nn.Sequential(edge.get_submodule("extractor"), client.server_model(request.weights))
        return Accuracies(client.evaluate(stacked).accuracy, client.evaluate(edge).accuracy)

    def client_model(self, server: Server, state: State, client: int, kept: ClientState) -> nn.Module:
        """The client's extractor followed by the server's model."""
        if "model" not in kept:
            kept = {"model": first_weights(server.world, client, self.start(server.world, state, client))}
        extractor = server.kept_model(client, kept).get_submodule("extractor")
        return nn.Sequential(OrderedDict(extractor=extractor, server=state.model))

    def server_model(self, server: Server, state: State) -> nn.Module:
        """The server's half, which takes features."""
        return state.model
