"""FedGKT: He, Annavaram, Avestimehr, Group Knowledge Transfer: Federated Learning of Large CNNs at the Edge, 2020.

Small CNNs train on the devices and send features and logits up; a large CNN trains on them at the server and sends its
logits back. The final model of client k is its extractor followed by the server's model; no client's weights travel.

Departures:
- Logits are matched by sample id. The authors' code pairs unrelated samples: batch numbers over shuffled loaders.
- Extractors train at a hundredth of the clients' learning rate, so that clients with unlike classes keep extractors
  that are alike; in the paper, and with `extractor_rate = 1`, they train at all of it.
- A sample has one teacher on the server, the client it belongs to, where equation 6 reads as a sum over clients.
- All extractors begin with one random stem, of which the paper says nothing; with `own_stems` each has its own. The
  authors' code copies them from a centrally trained ResNet-56: that is `models.weights`. `stem_epochs` trains the
  stem on public data first, which is no setting of `[models]`: only here do clients share an extractor alone.
- Batches of the server mix clients; `batches = "by-client"` is the paper's loop.
- The server's logits that go back are those of its last epoch of training, each before its step, which costs nothing;
  `answers = "after"` takes them after it, as Algorithm 1 does, with one more forward pass.
- Distillation is scaled by T squared, as in the authors' code; without `squared_temperature`, as in equations 6 and 7.
- An asynchronous run weighs all uploads alike, or with `rarity` those of slow clients more. It ends after as many
  uploads as a synchronous one, so that fast clients do more; with `quota` every client does its rounds.
- The paper's extractors train, and all features go up, in every round; with `freeze_after` extractors stop, their
  features go up once more, and the server augments them (`mirror`, `shift`) in place of the images.

Long because features that are sent once are options here.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from catchment.core.client import Client
from catchment.core.declarations import Share
from catchment.core.fleet import Fleet
from catchment.core.method import Method, Metrics, on_client
from catchment.core.replies import Reply
from catchment.core.server import Server
from catchment.core.versions import ClientState
from catchment.core.world import World
from catchment.data import Batch
from catchment.errors import ExperimentError, ModelError, at_least
from catchment.exchange.payload import Payload
from catchment.families import features, stems
from catchment.families.features import Augmentation, FeatureStore, Knowledge
from catchment.families.own_models import Scored
from catchment.learning.losses import cross_entropy, distillation
from catchment.learning.prefetch import prefetched
from catchment.learning.training import Weights, fit
from catchment.models import check_pair
from catchment.randomness import torch_generator


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
class ServerModel(Payload):
    """The server's model, down, to be evaluated where it will run."""

    weights: dict[str, Tensor]
    start: dict[str, Tensor] | None = None  # for a client that has not begun


@dataclass(frozen=True)
class Tested(Scored):
    """One client on the test set: its extractor followed by the server's model."""

    edge: Share  # accuracy of its small model alone


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
    moving_average: ClassVar[float] = 0.99
    persistent: ClassVar[tuple[str, ...]] = ("model", "optimizer", "sent", "extractor")
    takes_features: ClassVar[bool] = True
    client_epochs: int = 1  # E_c, of a client, per round
    server_epochs: int = 1  # E_s, of the server, per round
    temperature: float = 3.0  # T, of the softmax in distillation
    alpha: float = 1.0  # weight of the distillation terms
    squared_temperature: bool = True  # they are multiplied by T squared
    extractor_rate: float = 0.01  # share of the clients' learning rate that their extractors have; in the paper 1
    distill: Literal["none", "server-to-edge", "both"] = "both"  # who learns from logits: nobody, clients, everybody
    asynchronous: bool = False  # train on each upload when it comes, answer at once, wait for nobody
    quota: bool = False  # asynchronous: no client does more than its rounds
    rarity: float = 0.0  # asynchronous: how much more an upload weighs in the server's loss if its client sends few
    batches: Literal["mixed", "by-client"] = "mixed"  # of the server: samples of all clients, or of one at a time
    answers: Literal["training", "after"] = "training"  # z_s of the last epoch, or of one more pass in evaluation mode
    replay: float = 0.0  # samples of clients that sent nothing now, for each sample that came, to train on again
    augment_features: bool = True  # extract from augmented images, as trained on; otherwise from plain ones
    own_stems: bool = False  # every client begins with another random extractor
    stem_epochs: int = 0  # of the stem that all begin with, on public data, before the first round
    upload_every: int = 1  # turns of a client; in between the server trains on the features it has
    skip_below: float = 0.0  # relative change of a sample's features under which they are not sent again
    freeze_after: int | None = None  # turns of a client in which its extractor trains; its features are final then
    edge: Literal["head", "model", "none"] = "head"  # what a client goes on training once its features are final
    mirror: bool = False  # features of mirror images come beside those of plain ones; per sample one of them is taken
    shift: int = 0  # pixels by which the server moves maps of plain images at random, at most

    def __post_init__(self) -> None:
        for name in ("client_epochs", "server_epochs", "upload_every"):
            at_least(name, getattr(self, name), 1)
        for name in (
            "alpha",
            "extractor_rate",
            "skip_below",
            "replay",
            "stem_epochs",
            "rarity",
            "freeze_after",
            "shift",
        ):
            at_least(name, getattr(self, name) or 0, 0)
        if not self.temperature > 0:
            raise ExperimentError(f"temperature is {self.temperature}; a number above 0 is expected")
        if self.replay and self.batches == "by-client":
            raise ExperimentError('replay mixes what came with what is there; it goes with batches = "mixed"')
        for name in ("quota", "rarity"):
            if getattr(self, name) and not self.asynchronous:
                raise ExperimentError(f"{name} is for asynchronous = true; synchronous clients all do their rounds")
        if self.edge != "head" and self.freeze_after is None:
            raise ExperimentError(f'edge = "{self.edge}" is for clients whose features are final; set freeze_after')
        if self.skip_below and (self.mirror or self.freeze_after in (0, 1)):
            raise ExperimentError(
                "skip_below compares features with those of an earlier turn: it goes with neither mirror nor "
                "freeze_after = 0 or 1, where features go up once"
            )

    def check(self, world: World) -> None:
        """Every client's extractor must fit the server's model, and the stem if one is given."""
        if world.server_model is None:
            raise ModelError("fedgkt trains a server half on features; set models.server, such as resnet19")
        world.check_tests("fedgkt")
        for edge in dict.fromkeys(world.client_architectures):
            half = world.server_architecture
            check_pair(edge.build(), half.build(), edge.shape, world.classes, edge.name, half.name)
        if self.stem_epochs:
            stems.check_stem(world, self.own_stems)
        if self.skip_below and world.augment and self.augment_features:
            raise ExperimentError(
                "skip_below finds nothing to skip: features of freshly augmented images change every time; set "
                "augment_features = false"
            )
        plain = self.freeze_after is not None or self.plain(world, 0)
        features.check_augmentation(world, plain, self.mirror, self.shift)

    @property
    def final(self) -> float:
        """The turn of a client from which on its features do not change."""
        return math.inf if self.freeze_after is None else max(self.freeze_after, 1)

    def plain(self, world: World, turn: int) -> bool:
        """Whether a client's features of this turn are of images that are not augmented."""
        return turn >= self.final or not (world.augment and self.augment_features)

    @property
    def sends(self) -> bool:
        """With `asynchronous`."""
        return self.asynchronous

    @property
    def rate_shares(self) -> Mapping[str, float]:
        """Extractors change slowly: with data that are not IID those of fast ones drift away from each other."""
        return {"extractor": self.extractor_rate}

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
            state.stem = stems.trained_stem(server, self.stem_epochs)
        if self.asynchronous:
            self.asynchronous_round(server, state, fleet)
            return
        bodies = {k: self.feedback(server, state, k) for k in fleet.cohort() if not self.done(server, state, k)}
        replies = fleet.ask(self.local_training, bodies, accept=self.accept(server, state))
        came = {self.keep(state, reply) for reply in replies}
        if clients := sorted(came | self.settled(state)):
            self.train_server(server, state, clients)

    def asynchronous_round(self, server: Server, state: State, fleet: Fleet) -> None:
        """As many uploads as there are clients, each answered at once; last, settled clients that sent nothing now."""

        def send(clients: Sequence[int]) -> None:
            most = server.rounds if self.quota else math.inf
            wanted = [k for k in clients if state.turns.get(k, 0) < most and not self.done(server, state, k)]
            fleet.send(self.local_training, {k: self.feedback(server, state, k) for k in wanted})

        send(fleet.idle())
        heard, accept = set(), self.accept(server, state)
        uploads = sum(not self.done(server, state, k) for k in range(server.world.clients))
        # Where settled clients are left alone, all others may be slow: they are waited for as in a synchronous round.
        until = fleet.now + fleet.deadline if self.edge == "none" else None
        for reply in fleet.arrivals(self.local_training, count=uploads, until=until, accept=accept):
            heard.add(self.keep(state, reply))
            self.train_server(server, state, [reply.client])
            send([reply.client])
        if others := sorted(self.settled(state) - heard):
            self.train_server(server, state, others)

    # ---- the server ----

    def settled(self, state: State) -> set[int]:
        """The clients whose final features are here."""
        return {k for k, turn in state.store.turns.items() if turn >= self.final}

    def done(self, server: Server, state: State, client: int) -> bool:
        """Whether a client has nothing left to do, or no samples to do it with."""
        data, turn = server.world.data, state.store.turns.get(client, 0)
        return not (data.own or data.clients.sizes[client]) or (self.edge == "none" and turn >= self.final)

    def start(self, world: World, state: State, client: int) -> Weights | None:
        """Weights that a client begins with and cannot make itself; None if there are none."""
        return {**world.client_architecture(client).fitting, **state.stem} or None

    def feedback(self, server: Server, state: State, client: int) -> Feedback:
        """What a client is told before it trains."""
        turn = state.turns[client] = state.turns.get(client, 0) + 1
        store, holds = state.store, state.store.turns.get(client, 0)
        begun = client in store.turns
        told = begun and self.distill != "none"
        return Feedback(
            logits=store.answers[client] if told else None,
            ids=store.ids[client] if told else None,
            start=None if begun else self.start(server.world, state, client),
            upload=not begun or (holds < self.final if turn >= self.final else (turn - 1) % self.upload_every == 0),
            turn=turn,
            holds=holds,
        )

    def accept(self, server: Server, state: State) -> Callable[[Reply[Knowledge]], str]:
        """Why an upload cannot be used; nothing if it can."""
        data = server.world.data

        def refusal(reply: Reply[Knowledge]) -> str:
            dealt, upload = None if data.own else data.clients[reply.client], reply.body
            both = self.mirror and len(upload.ids) > 0 and self.plain(server.world, upload.turn)
            if both is (upload.mirrored is None):
                return f"features of mirror images {'are missing' if both else 'came that nobody asked for'}"
            return state.store.refusal(reply.client, upload.ids, upload.beside, dealt)

        return refusal

    def keep(self, state: State, reply: Reply[Knowledge]) -> int:
        """Put an upload into the store; whose it is."""
        h = reply.body
        state.store.put(reply.client, h.ids, h.features, h.labels, h.logits, h.turn, h.mirrored)
        return reply.client

    def train_server(self, server: Server, state: State, clients: Sequence[int]) -> None:
        """E_s epochs of equation 8; the logits of the last epoch, or those after it, go back."""
        f_s, store, device = server.spread(state.model.train()), state.store, server.world.device
        others = [k for k in sorted(store.turns) if self.replay and k not in clients]
        everybody = [*clients, *others]
        z_k, z_s = store.rows(store.logits, everybody), store.rows(store.answers, everybody)
        weights = store.weights(clients, others, store.turns | state.turns, self.rarity) if self.rarity else None

        def l_s(batch: Batch) -> Tensor:  # equation 6
            logits = f_s(batch.images)
            z_s[batch.ids] = logits.detach().cpu()
            w = None if weights is None else weights[batch.ids].to(device)
            loss = cross_entropy(logits, batch.labels, w)
            if self.distill == "both":
                loss = loss + self.weight * distillation(logits, z_k[batch.ids].to(device), self.temperature, w)
            return loss

        fit(state.optimizer, self.server_batches(server, state, clients, others), l_s)
        if self.answers == "after":
            with torch.no_grad():
                state.model.eval()
                for batch in store.in_order(clients, server.world.server_optimizer.batch_size):
                    z_s[batch.ids] = state.model(batch.images.to(device)).cpu()
        store.answer(everybody, z_s)
        if self.upload_every == 1 and not self.skip_below and not self.replay and self.freeze_after is None:
            store.forget_features()

    def server_batches(
        self, server: Server, state: State, clients: Sequence[int], others: Sequence[int]
    ) -> Iterator[Batch]:
        """E_s epochs over what these clients sent, and some of what others sent before."""
        world, first = server.world, clients[0]
        turn = state.turns.get(first, 0)
        uploads = (turn,) if self.asynchronous else ()  # of one client there may be several in a round
        plain = {k for k in (*clients, *others) if self.plain(world, state.store.turns[k])}
        for epoch in range(self.server_epochs):
            seed = server.seed("augment", epoch, first, *uploads)
            batches = state.store.epoch(
                clients,
                others,
                size=world.server_optimizer.batch_size,
                mixed=self.batches == "mixed",
                replay=self.replay,
                shuffle=torch_generator(server.seed("shuffle", epoch, first, *uploads)),
                again=torch_generator(server.seed("replay", epoch, first, turn)),
                augmentation=Augmentation(seed, plain, self.mirror, self.shift) if self.mirror or self.shift else None,
            )
            for batch in prefetched(batches):
                yield Batch(batch.images.to(world.device), batch.labels.to(world.device), batch.ids)

    # ---- the client ----

    @on_client
    def local_training(self, client: Client, request: Feedback) -> Knowledge:
        """ClientLocalTraining: E_c epochs of equation 10, then features and logits of every sample."""
        stems.begin(client, request.start, self.own_stems)
        turn, frozen = request.turn, "extractor" in client.state
        trains = self.freeze_after is None or turn <= self.freeze_after
        if not trains and not frozen:
            client.state = stems.with_frozen(client.state)
        model, optimizer = client.own_model()
        if trains or not frozen or self.edge != "none":
            forward = model if trains or self.edge == "model" else stems.only_head(model)
            fit(optimizer, client.batches(epochs=self.client_epochs), self.l_c(forward, request))
        client.keep(model, optimizer)
        if turn == self.freeze_after:
            client.state = stems.with_frozen(client.state)
        return self.upload(client, model.eval(), request)

    def l_c(self, model: Callable[[Tensor], Tensor], feedback: Feedback) -> Callable[[Batch], Tensor]:
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

    def upload(self, client: Client, model: nn.Module, request: Feedback) -> Knowledge:
        """H and z_k of every sample of a client, in the order of ids; of none if the server wants none."""
        turn, holds = request.turn, request.holds
        if not request.upload:
            return features.no_knowledge(client, turn, beside=holds)
        extractor = stems.extractor_in_use(model, client.state if self.edge == "model" else {})
        all_samples = features.knowledge(client, model, extractor, turn, self.plain(client.world, turn), self.mirror)
        if not self.skip_below or turn >= self.final:
            return all_samples
        few, sent = features.changes(all_samples, client.state.get("sent", {}), holds, self.skip_below)
        client.state = {**client.state, "sent": sent}
        return few

    # ---- what comes out ----

    def evaluate(self, server: Server, state: State, fleet: Fleet) -> Metrics:
        """Each client runs its final model, where it is: the server's model travels, booked apart."""
        weights, world = state.model.state_dict(), server.world
        kinds = len(world.client_architectures)  # dealt in turn
        begun, new = ServerModel(weights), [ServerModel(weights, self.start(world, state, k)) for k in range(kinds)]
        bodies = {k: begun if k in state.store.turns else new[k % kinds] for k in fleet.measured()}
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
        stems.begin(client, request.start, self.own_stems)
        edge = client.kept_model()
        stacked = nn.Sequential(stems.extractor_in_use(edge, client.state), client.server_model(request.weights))
        return Tested.of(client.evaluate(stacked).quality, edge=client.evaluate(edge).accuracy)

    def client_model(self, server: Server, state: State, client: int, kept: ClientState) -> nn.Module:
        """The client's extractor followed by the server's model."""
        if "model" not in kept:
            w = stems.first_weights(server.world, client, self.start(server.world, state, client), self.own_stems)
            kept = {"model": w}
        extractor = stems.extractor_in_use(server.kept_model(client, kept), kept)
        return nn.Sequential(OrderedDict(extractor=extractor, server=state.model))

    def server_model(self, server: Server, state: State) -> nn.Module:
        """The server's half, which takes features."""
        return state.model
