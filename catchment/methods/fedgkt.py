"""FedGKT: He, Annavaram, Avestimehr, Group Knowledge Transfer: Federated Learning of Large CNNs at the Edge, 2020.

Small CNNs train on the devices and send features and logits up; a large CNN trains on them at the server and sends its
logits back. The final model of client k is its extractor followed by the server's model; no client's weights travel.

Departures:
- Logits are matched by sample id. The authors' code matches them by batch number over shuffled loaders, which pairs
  unrelated samples.
- A sample has one teacher on the server, the client it belongs to, where equation 6 reads as a sum over clients.
- `start` says where the extractors begin. The authors' code copies them from a centrally trained ResNet-56, which the
  paper does not mention; here that is `pretrained`, and the default is `scratch`.
- Batches of the server mix clients; `batches = "by-client"` is the paper's loop.
- An asynchronous run ends after as many uploads as a synchronous one, so that fast clients do more; with `quota` every
  client does its rounds, and the run waits for the slowest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from catchment.client import Client, ClientState
from catchment.data import Batch
from catchment.data.batching import batch_sizes
from catchment.errors import ExperimentError, ModelError, at_least
from catchment.expectations import Share, Turn, features, ids, labels, logits
from catchment.fleet import Fleet, Reply
from catchment.losses import distillation
from catchment.message import Payload
from catchment.method import Method, Metrics, on_client
from catchment.models import check_pair
from catchment.optimizers import load_optimizer_tensors, optimizer_tensors, set_rate
from catchment.randomness import torch_generator
from catchment.server import Server
from catchment.spool import Spool
from catchment.training import Weights, copy_weights, drops, fit, load_weights, tensors_of
from catchment.world import World


@dataclass(frozen=True)
class Feedback(Payload):
    """The server's logits for a client's samples, down; nothing before the first transfer."""

    logits: Tensor | None = None  # z_s, [N_k, C]
    ids: Tensor | None = None  # [N_k], ascending
    stem: dict[str, Tensor] | None = None  # the extractor to begin with, if not the random one that all know
    rate: float = 1.0  # of the learning rate
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
    stem: dict[str, Tensor] | None = None  # for a client that has not begun


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
    features: dict[str, Spool]  # H by client, for each shape of features
    stem: Weights = field(default_factory=dict)  # where the extractors begin; empty: at random weights
    known: dict[int, dict[str, Tensor]] = field(default_factory=dict)  # by client: ids, labels, logits z_k, answers z_s
    turns: dict[int, int] = field(default_factory=dict)  # by client: how often it was asked
    holds: dict[int, int] = field(default_factory=dict)  # by client: the turn of its last upload


@dataclass(frozen=True)
class FedGKT(Method[State]):
    """Group knowledge transfer."""

    persistent: ClassVar[tuple[str, ...]] = ("model", "optimizer", "sent")
    takes_features: ClassVar[bool] = True
    client_epochs: int = 1  # E_c
    server_epochs: int = 1  # E_s
    temperature: float = 3.0  # T
    alpha: float = 1.0  # weight of the distillation terms
    distill: Literal["none", "server-to-edge", "both"] = "both"
    asynchronous: bool = False  # train on each upload when it comes, answer at once, wait for nobody
    quota: bool = False  # asynchronous: no client does more than its rounds
    batches: Literal["mixed", "by-client"] = "mixed"  # of the server
    replay: float = 0.0  # samples of clients that sent nothing now, for each sample that came, to train on again
    augment_features: bool = True  # extract from augmented images, as trained on; otherwise from plain ones
    start: Literal["scratch", "shared-stem", "pretrained"] = "scratch"
    stem_epochs: int = 10  # shared-stem: on the public data
    checkpoint: str | None = None  # pretrained: a safetensors file with extractor.*
    patience: int | None = None  # evaluations without a better accuracy before both learning rates drop
    factor: float = 0.1  # by which they drop
    upload_every: int = 1  # turns of a client; in between the server trains on the features it has
    skip_below: float = 0.0  # relative change of a sample's features under which they are not sent again

    def __post_init__(self) -> None:
        for name in ("client_epochs", "server_epochs", "stem_epochs", "upload_every"):
            at_least(name, getattr(self, name), 1)
        for name in ("alpha", "skip_below", "replay"):
            at_least(name, getattr(self, name), 0)
        if self.patience is not None:
            at_least("patience", self.patience, 1)
        if not self.temperature > 0:
            raise ExperimentError(f"temperature is {self.temperature}; a number above 0 is expected")
        if not 0 < self.factor < 1:
            raise ExperimentError(f"factor is {self.factor}; a number between 0 and 1 is expected")
        if (self.start == "pretrained") != (self.checkpoint is not None):
            raise ExperimentError(
                f'start is "{self.start}" and checkpoint is {self.checkpoint}; "pretrained" goes with a file of weights'
            )
        if self.replay and self.batches == "by-client":
            raise ExperimentError('replay mixes what came with what is there; it goes with batches = "mixed"')
        if self.quota and not self.asynchronous:
            raise ExperimentError("quota is for asynchronous = true; synchronous clients all do their rounds")

    def check(self, world: World) -> None:
        """Every client's extractor must fit the server's model, and the stem if one is given."""
        if world.server_model is None:
            raise ModelError("fedgkt trains a server half on features; set models.server, such as resnet19")
        world.check_tests("fedgkt")
        for edge in dict.fromkeys(world.client_architectures):
            half = world.server_architecture
            check_pair(edge.build(), half.build(), edge.shape, world.classes, edge.name, half.name)
        if self.start == "shared-stem":
            world.need_public_labels(
                'start = "shared-stem" (not "scratch", where all clients begin with one random stem) trains a stem on '
                "public samples and their labels"
            )
        if self.start != "scratch":
            stem = (
                self.stem_from_file()
                if self.start == "pretrained"
                else _extractor(world.client_architectures[0].build())
            )
            for edge in dict.fromkeys(world.client_architectures):
                load_weights(tensors_of(edge.build().get_submodule("extractor")), stem, f"the extractor of {edge.name}")
        if self.skip_below and world.augment and self.augment_features:
            raise ExperimentError(
                "skip_below finds nothing to skip: features of freshly augmented images change every time; set "
                "augment_features = false"
            )

    def init(self, server: Server) -> State:
        """A fresh server model."""
        model = server.model()
        shapes = dict.fromkeys(_shape(server.world, k) for k in range(len(server.world.client_architectures)))
        return State(model, server.optimizer(model), {shape: server.spool() for shape in shapes})

    def round(self, server: Server, state: State, fleet: Fleet) -> None:
        """Algorithm 1: local training in parallel, server training on all uploads, transfer back."""
        if server.round == 1:
            state.stem = self.first_stem(server)
        set_rate(state.optimizer, server.world.server_optimizer.lr * self.rate(server))
        if self.asynchronous:
            self.asynchronous_round(server, state, fleet)
            return
        bodies = {k: self.feedback(server, state, k) for k in fleet.cohort()}
        replies = fleet.ask(self.local_training, bodies)
        came = sorted(reply.client for reply in replies if self.accept(server, state, fleet, reply))
        if came:
            self.train_server(server, state, came)

    def asynchronous_round(self, server: Server, state: State, fleet: Fleet) -> None:
        """As many uploads as there are clients, whoever they come from; each is answered at once."""

        def send(clients: Sequence[int]) -> None:
            wanted = [k for k in clients if not self.quota or state.turns.get(k, 0) < server.rounds]
            fleet.send(self.local_training, {k: self.feedback(server, state, k) for k in wanted})

        send(fleet.idle())
        for reply in fleet.arrivals(self.local_training, count=server.world.clients):
            if self.accept(server, state, fleet, reply):
                self.train_server(server, state, [reply.client])
            send([reply.client])

    # ---- the server ----

    def feedback(self, server: Server, state: State, client: int) -> Feedback:
        """What a client is told before it trains."""
        turn = state.turns[client] = state.turns.get(client, 0) + 1
        known = state.known.get(client)
        told = known is not None and self.distill != "none"
        return Feedback(
            logits=known["answers"] if known and told else None,
            ids=known["ids"] if known and told else None,
            stem=state.stem if state.stem and known is None else None,
            rate=self.rate(server),
            upload=client not in state.holds or (turn - 1) % self.upload_every == 0,
            turn=turn,
            holds=state.holds.get(client, 0),
        )

    def rate(self, server: Server) -> float:
        """The share of the learning rates that is left after the plateaus so far."""
        return 1.0 if self.patience is None else self.factor ** drops(server.history, self.patience)

    def accept(self, server: Server, state: State, fleet: Fleet, reply: Reply[Knowledge]) -> bool:
        """Keep an upload; False, and an event, if there is something wrong with it."""
        client, upload = reply.client, reply.body
        reason = self.refusal(server.world, state, client, upload)
        if reason:
            fleet.refuse(reply, reason)
            return False
        if not len(upload.ids):
            return True  # the server has it all
        spool = state.features[_shape(server.world, client)]
        if len(upload.ids) == len(self.ids_of(server.world, state, client, upload)):
            spool.put(client, upload.features)
            known = {"labels": upload.labels, "logits": upload.logits, "ids": upload.ids}
            state.known[client] = {**known, "answers": torch.zeros_like(upload.logits)}
        else:
            known = state.known[client]
            changed = torch.searchsorted(known["ids"], upload.ids)
            spool.put(client, upload.features, at=changed)
            known["logits"] = known["logits"].index_copy(0, changed, upload.logits)
        state.holds[client] = upload.turn
        return True

    def refusal(self, world: World, state: State, client: int, upload: Knowledge) -> str:
        """Why an upload cannot be used; nothing if it can."""
        own, ids = self.ids_of(world, state, client, upload), upload.ids
        n = len(ids)
        if world.data.own and client not in state.known and not (n and bool((ids.diff() > 0).all())):
            return f"{n} ids came first that are not ascending, at least one"
        if n == len(own) or client not in state.features[_shape(world, client)]:  # there is nothing to stand beside
            return "" if torch.equal(ids, own) else f"{n} ids came that are not the {len(own)} of client {client}"
        if upload.beside != state.holds.get(client):
            return f"{n} of {len(own)} samples came beside upload {upload.beside}; {state.holds.get(client)} is here"
        if not bool((ids.diff() > 0).all()) or not bool(torch.isin(ids, own).all()):
            return f"{n} ids came that are not ascending ids of client {client}"
        return ""

    def ids_of(self, world: World, state: State, client: int, upload: Knowledge) -> Tensor:
        """All samples of a client: those it was dealt, or, of its own, those that its first upload had."""
        if not world.data.own:
            return world.data.clients[client]
        return state.known[client]["ids"] if client in state.known else upload.ids

    def train_server(self, server: Server, state: State, clients: Sequence[int]) -> None:
        """E_s epochs of equation 8; the logits of the last epoch go back."""
        held = [k for k in sorted(state.holds) if self.replay and k not in clients]
        everybody = [*clients, *held]
        labels, z_k, z_s = (
            torch.cat([state.known[k][name] for k in everybody]) for name in ("labels", "logits", "answers")
        )
        device = server.world.device

        def l_s(batch: Batch) -> Tensor:  # equation 6
            logits = state.model(batch.images)
            z_s[batch.ids] = logits.detach().cpu()
            loss = F.cross_entropy(logits, batch.labels)
            if self.distill == "both":
                loss = loss + self.alpha * distillation(logits, z_k[batch.ids].to(device), self.temperature)
            return loss

        state.model.train()
        fit(state.optimizer, self.server_batches(server, state, clients, held, labels), l_s)
        for k, answers in zip(everybody, z_s.split_with_sizes([len(state.known[k]["ids"]) for k in everybody])):
            state.known[k]["answers"] = answers.clone()
        if self.upload_every == 1 and not self.skip_below and not self.replay:
            for spool in state.features.values():
                spool.clear()

    def server_batches(
        self, server: Server, state: State, clients: Sequence[int], held: Sequence[int], labels: Tensor
    ) -> Iterator[Batch]:
        """E_s epochs over what these clients sent, and some of what is held; ids are rows over all of them."""
        world = server.world
        everybody = [*clients, *held]
        sizes = [len(state.known[k]["ids"]) for k in everybody]
        rows = dict(zip(everybody, torch.arange(sum(sizes)).split_with_sizes(sizes)))
        groups: dict[object, list[int]] = {}  # batches do not reach over groups
        for k in everybody:
            groups.setdefault(_shape(world, k) if self.batches == "mixed" else k, []).append(k)
        for epoch in range(self.server_epochs):
            generator = torch_generator(server.seed("shuffle", epoch, clients[0]))
            again = torch_generator(server.seed("replay", epoch, clients[0], state.turns.get(clients[0], 0)))
            plan: list[tuple[list[int], Tensor]] = []
            for group in groups.values():
                new = sum(len(rows[k]) for k in group if k in clients)
                old = torch.randperm(sum(len(rows[k]) for k in group) - new, generator=again)
                index = torch.cat([torch.arange(new), new + old[: round(self.replay * new)]])
                index = index[torch.randperm(len(index), generator=generator)]
                size = world.server_optimizer.batch_size
                plan += [(group, part) for part in index.split_with_sizes(batch_sizes(len(index), size))]
            if self.batches == "mixed" and len(groups) > 1:
                plan = [plan[i] for i in torch.randperm(len(plan), generator=generator)]
            for group, part in plan:
                features = state.features[_shape(world, group[0])].take(group, part)
                if features.ndim == 4:
                    features = features.contiguous(memory_format=torch.channels_last)
                at = torch.cat([rows[k] for k in group])[part]
                yield Batch(features.to(world.device), labels[at].to(world.device), at)

    # ---- where the extractors begin ----

    def first_stem(self, server: Server) -> Weights:
        """The extractor that all clients begin with; empty for the random one that they can make themselves."""
        if self.start == "scratch":
            return {}
        if self.start == "pretrained":
            return self.stem_from_file()
        model = server.world.client_architectures[0].build()
        settings = server.world.client_optimizer
        assert server.public is not None  # checked before the run
        public = server.batches(server.public, settings.batch_size, epochs=self.stem_epochs)
        fit(
            settings.build(model.parameters()), public, lambda batch: F.cross_entropy(model(batch.images), batch.labels)
        )
        return _extractor(model)

    def stem_from_file(self) -> Weights:
        """The tensors `extractor.*` of the checkpoint."""
        path = Path(self.checkpoint or "")
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise ExperimentError(f"checkpoint {path} cannot be read as a safetensors file: {error}") from None
        stem = {name.removeprefix("extractor."): t for name, t in tensors.items() if name.startswith("extractor.")}
        if not stem:
            raise ExperimentError(
                f"checkpoint {path} has no tensors extractor.*; it has {', '.join(sorted(tensors)[:4])}, ..."
            )
        return stem

    # ---- the client ----

    @on_client
    def local_training(self, client: Client, request: Feedback) -> Knowledge:
        """ClientLocalTraining: E_c epochs of equation 10, then features and logits of every sample."""
        model = self.edge_model(client, request.stem)
        optimizer = client.optimizer(model)
        load_optimizer_tensors(optimizer, client.state.get("optimizer", {}))
        set_rate(optimizer, client.world.client_optimizer.lr * request.rate)
        fit(optimizer, client.batches(epochs=self.client_epochs), self.l_c(model, request))
        sent = client.state.get("sent", {})
        knowledge = self.extract(client, model.eval(), request)
        if self.skip_below and request.upload:
            knowledge, sent = self.skip(knowledge, sent, request.holds)
        client.state = {"model": model.state_dict(), "optimizer": optimizer_tensors(optimizer), "sent": sent}
        return knowledge

    def edge_model(self, client: Client, stem: Weights | None) -> nn.Module:
        """The client's small model as it left it, or as it begins."""
        model = client.model(client.state.get("model"))
        if stem and "model" not in client.state:
            load_weights(tensors_of(model.get_submodule("extractor")), stem, "the extractor")
        return model

    def l_c(self, model: nn.Module, feedback: Feedback) -> Callable[[Batch], Tensor]:
        """Equation 7: cross-entropy, and distillation from the server once it has answered."""
        z_s, ids = feedback.logits, feedback.ids

        def loss(batch: Batch) -> Tensor:
            logits = model(batch.images)
            value = F.cross_entropy(logits, batch.labels)
            if self.distill == "none" or z_s is None or ids is None:
                return value
            teacher = z_s[torch.searchsorted(ids, batch.ids.cpu())].to(logits.device)
            return value + self.alpha * distillation(logits, teacher, self.temperature)

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
            shape = client.world.client_architecture(client.id).probe.features or ()
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
        weights = state.model.state_dict()
        begun, not_begun = ServerModel(weights), ServerModel(weights, state.stem or None)
        bodies = {k: begun if k in state.known else not_begun for k in fleet.clients()}
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
        edge = self.edge_model(client, request.stem)
        stacked = nn.Sequential(edge.get_submodule("extractor"), client.server_model(request.weights))
        return Accuracies(client.evaluate(stacked).accuracy, client.evaluate(edge).accuracy)

    def client_model(self, server: Server, state: State, client: int, kept: ClientState) -> nn.Module:
        """The client's extractor followed by the server's model."""
        first = server.world.client_architecture(client).probe.initial
        extractor = server.client_model(client, kept.get("model", first)).get_submodule("extractor")
        if state.stem and "model" not in kept:
            load_weights(tensors_of(extractor), state.stem, "the extractor")
        return nn.Sequential(OrderedDict(extractor=extractor, server=state.model))

    def server_model(self, server: Server, state: State) -> nn.Module:
        """The server's half, which takes features."""
        return state.model


def _extractor(model: nn.Module) -> Weights:
    return copy_weights(model.get_submodule("extractor"))


def _shape(world: World, client: int) -> str:
    """The shape of a client's features, as the name of the spool they are in."""
    return "x".join(map(str, world.client_architecture(client).probe.features or ()))
