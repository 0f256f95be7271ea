"""Five methods in miniature, each for one thing that the fleet must support.

They are not the papers' methods, only their patterns of exchange: FedGKT without a barrier, FedGEMS asking in the
middle of server training, FedZKT training some and sending to all, Fed-KGF with another payload for every client,
split learning with one exchange a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from catchment import Client, Fleet, Method, Metrics, Payload, Server, Weights, fit, on_client
from catchment.core.declarations import Share, client_weights, features, labels, like, logits
from catchment.learning.averaging import WeightedMean
from catchment.learning.optimizers import load_optimizer_tensors, optimizer_tensors
from catchment.learning.training import load_weights, tensors_of
from catchment.methods.split import client_extractor


def _loss(model: nn.Module):
    return lambda batch: F.cross_entropy(model(batch.images), batch.labels)


# ---- FedGKT, asynchronous: send to whoever is idle, train on each arrival, answer at once ------------------------


@dataclass(frozen=True)
class Feedback(Payload):
    logits: Tensor | None  # [N_k, C], rows by position in the client's data


@dataclass(frozen=True)
class Knowledge(Payload):
    features: Annotated[Tensor, features("N_k")]
    logits: Annotated[Tensor, logits("N_k")]
    labels: Annotated[Tensor, labels("N_k")]


@dataclass
class TransferState:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    feedback: dict[int, Tensor] = field(default_factory=dict)
    trained: list[int] = field(default_factory=list)  # whose upload, in order


@dataclass(frozen=True)
class Transfer(Method[TransferState]):
    persistent: ClassVar[tuple[str, ...]] = ("model", "optimizer")
    derives_weights: ClassVar[bool] = True
    arrivals_per_round: int = 3

    @property
    def sends(self) -> bool:
        return True

    def init(self, server: Server) -> TransferState:
        model = server.model()
        return TransferState(model, server.optimizer(model))

    def round(self, server: Server, state: TransferState, fleet: Fleet) -> None:
        fleet.send(self.local_training, {k: Feedback(state.feedback.get(k)) for k in fleet.idle()})
        for reply in fleet.arrivals(self.local_training, count=self.arrivals_per_round):
            self.train_server(server.world.device, state, reply.client, reply.body)
            fleet.send(self.local_training, {reply.client: Feedback(state.feedback[reply.client])})

    def train_server(self, device: torch.device, state: TransferState, client: int, upload: Knowledge) -> None:
        state.model.train()
        state.optimizer.zero_grad()
        logits = state.model(upload.features.to(device))
        F.cross_entropy(logits, upload.labels.to(device)).backward()
        state.optimizer.step()
        state.feedback[client] = logits.detach().cpu()
        state.trained.append(client)

    @on_client
    def local_training(self, client: Client, request: Feedback) -> Knowledge:
        model = client.model(client.state.get("model"))
        optimizer = client.optimizer(model)
        load_optimizer_tensors(optimizer, client.state.get("optimizer", {}))
        row = {int(i): n for n, i in enumerate(client.train.ids)}

        def loss(batch):
            logits = model(batch.images)
            value = F.cross_entropy(logits, batch.labels)
            if request.logits is None:
                return value
            teacher = request.logits[[row[int(i)] for i in batch.ids]].to(logits.device)
            return value + F.kl_div(logits.log_softmax(1), teacher.softmax(1), reduction="batchmean")

        fit(optimizer, client.batches(), loss)
        client.state = {"model": model.state_dict(), "optimizer": optimizer_tensors(optimizer)}
        model.eval()
        with torch.no_grad():
            parts = [
                (h := model.extractor(b.images), model.classifier(h), b.labels) for b in client.batches(shuffle=False)
            ]
        return Knowledge(*(torch.cat(tensors) for tensors in zip(*parts)))

    def evaluate(self, server: Server, state: TransferState, fleet: Fleet) -> Metrics:
        with fleet.aside("evaluation"):  # busy clients too: they answer from the state before their work
            clients = {r.client: r.body.accuracy for r in fleet.ask(self.test, dict.fromkeys(fleet.clients(), Ask()))}
        return Metrics(sum(clients.values()) / len(clients), clients=dict(sorted(clients.items())))

    @on_client
    def test(self, client: Client, request: Ask) -> Score:
        return Score(client.evaluate(client.model(client.state.get("model"))).accuracy)


@dataclass(frozen=True)
class Ask(Payload):
    """Nothing but a question."""


@dataclass(frozen=True)
class Score(Payload):
    accuracy: Share


# ---- FedGEMS: the server asks for chosen samples between two of its own steps ------------------------------------


@dataclass(frozen=True)
class Ids(Payload):
    ids: Tensor  # wanted rows of the public data


@dataclass(frozen=True)
class Predictions(Payload):
    logits: Annotated[Tensor, logits("n <= N_0")]


@dataclass
class ServerModel:
    model: nn.Module
    optimizer: torch.optim.Optimizer


@dataclass(frozen=True)
class Selective(Method[ServerModel]):
    persistent: ClassVar[tuple[str, ...]] = ("model",)

    def init(self, server: Server) -> ServerModel:
        model = server.client_model(0, server.world.client_architecture(0).facts.initial)
        return ServerModel(model, server.optimizer(model))

    def round(self, server: Server, state: ServerModel, fleet: Fleet) -> None:
        cohort = fleet.cohort()
        for _ in fleet.ask(self.train, dict.fromkeys(cohort, Ask())):
            pass
        for batch in server.batches(server.public, 32):
            state.model.train()
            logits = state.model(batch.images)
            wrong = logits.argmax(1) != batch.labels
            mean = WeightedMean()
            if wrong.any():
                bodies = dict.fromkeys([k for k in cohort if k in fleet.idle()], Ids(batch.ids[wrong]))
                for reply in fleet.ask(self.predict, bodies, in_order=True):
                    mean.add({"logits": reply.body.logits}, 1.0)
            loss = F.cross_entropy(logits, batch.labels)
            if mean.weight:
                teacher = mean.value()["logits"].softmax(1).to(logits.device)
                loss = loss + F.kl_div(logits[wrong].log_softmax(1), teacher, reduction="batchmean")
            state.optimizer.zero_grad()
            loss.backward()
            state.optimizer.step()

    @on_client
    def train(self, client: Client, request: Ask) -> Ask:
        model = client.model(client.state.get("model"))
        fit(client.optimizer(model), client.batches(), _loss(model))
        client.state = {"model": model.state_dict()}
        return Ask()

    @on_client
    def predict(self, client: Client, request: Ids) -> Predictions:
        model = client.model(client.state.get("model")).eval()
        row = {int(i): n for n, i in enumerate(client.public.ids)}
        wanted = client.public.select(torch.tensor([row[int(i)] for i in request.ids]))
        with torch.no_grad():
            return Predictions(torch.cat([model(b.images) for b in client.batches(wanted, shuffle=False)]))

    def evaluate(self, server: Server, state: ServerModel, fleet: Fleet) -> Metrics:
        score = server.evaluate(state.model)
        return Metrics(score.accuracy, server=score.as_dict())


# ---- FedZKT: some train, all receive -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Model(Payload):
    weights: Annotated[dict[str, Tensor], like(client_weights, part=True)]


@dataclass
class Ensemble:
    weights: dict[int, Weights] = field(default_factory=dict)


@dataclass(frozen=True)
class Broadcast(Method[Ensemble]):
    persistent: ClassVar[tuple[str, ...]] = ("model",)

    def init(self, server: Server) -> Ensemble:
        return Ensemble()

    def round(self, server: Server, state: Ensemble, fleet: Fleet) -> None:
        for reply in fleet.ask(self.train, dict.fromkeys(fleet.cohort(), Ask()), in_order=True):
            state.weights[reply.client] = reply.body.weights
        groups: dict[str, list[int]] = {}
        for client in sorted(state.weights):
            groups.setdefault(server.world.client_architecture(client).name, []).append(client)
        bodies = {}
        for members in groups.values():
            mean = WeightedMean()
            for client in members:
                mean.add(state.weights[client], 1.0)
            bodies |= dict.fromkeys([k for k in members if k in fleet.idle()], Model(mean.value()))
        for _ in fleet.ask(self.install, bodies):
            pass

    @on_client
    def train(self, client: Client, request: Ask) -> Model:
        model = client.model(client.state.get("model"))
        fit(client.optimizer(model), client.batches(), _loss(model))
        return Model(model.state_dict())

    @on_client
    def install(self, client: Client, request: Model) -> Ask:
        client.state = {"model": request.weights}
        return Ask()

    def evaluate(self, server: Server, state: Ensemble, fleet: Fleet) -> Metrics:
        scores = {k: server.evaluate(server.client_model(k, w)).accuracy for k, w in sorted(state.weights.items())}
        return Metrics(sum(scores.values()) / max(len(scores), 1), clients=scores)


# ---- Fed-KGF: every client uploads another part ------------------------------------------------------------------


@dataclass(frozen=True)
class Part(Payload):
    weights: dict[str, Tensor]
    group: int
    groups: int


@dataclass
class Assembled:
    weights: Weights


@dataclass(frozen=True)
class Modules(Method[Assembled]):
    def init(self, server: Server) -> Assembled:
        return Assembled(server.world.client_architecture(0).facts.initial)

    def round(self, server: Server, state: Assembled, fleet: Fleet) -> None:
        cohort = fleet.cohort()
        order = torch.randperm(len(cohort), generator=torch.Generator().manual_seed(server.seed("groups"))).tolist()
        bodies = {k: Part(state.weights, order[n], len(cohort)) for n, k in enumerate(cohort)}
        received: Weights = {}
        for reply in fleet.ask(self.train, bodies):
            received |= reply.body.weights
        state.weights = {name: received.get(name, old) for name, old in state.weights.items()}

    @on_client
    def train(self, client: Client, request: Part) -> Model:
        model = client.model(request.weights)
        fit(client.optimizer(model), client.batches(), _loss(model))
        mine = list(model.state_dict().items())[request.group :: request.groups]
        return Model(dict(mine))

    def evaluate(self, server: Server, state: Assembled, fleet: Fleet) -> Metrics:
        score = server.evaluate(server.client_model(0, state.weights))
        return Metrics(score.accuracy, server=score.as_dict())


# ---- split learning: one exchange a batch, no graph between messages ---------------------------------------------


@dataclass(frozen=True)
class Gradient(Payload):
    gradient: Tensor | None  # of the last features


@dataclass(frozen=True)
class Activations(Payload):
    features: Annotated[Tensor, features("n <= N_k", least=1)] | None  # None: the epoch is over
    labels: Annotated[Tensor, labels("n <= N_k", least=1)] | None


@dataclass(frozen=True)
class Extractor(Payload):
    weights: Annotated[dict[str, Tensor], like(client_extractor)]


@dataclass(frozen=True)
class Split(Method[ServerModel]):
    persistent: ClassVar[tuple[str, ...]] = ("model", "cursor")
    batch: int = 48

    def init(self, server: Server) -> ServerModel:
        model = server.model()
        return ServerModel(model, server.optimizer(model))

    def round(self, server: Server, state: ServerModel, fleet: Fleet) -> None:
        state.model.train()
        for client in fleet.cohort():
            down = Gradient(None)
            while True:
                reply = next(fleet.ask(self.step, {client: down}), None)
                if reply is None or reply.body.features is None:
                    break
                features = reply.body.features.to(server.world.device).clone().requires_grad_()
                state.optimizer.zero_grad()
                F.cross_entropy(state.model(features), reply.body.labels.to(server.world.device)).backward()
                state.optimizer.step()
                down = Gradient(features.grad)

    @on_client
    def step(self, client: Client, request: Gradient) -> Activations:
        model = client.model(client.state.get("model"))
        at = int(client.state["cursor"]["at"]) if "cursor" in client.state else 0
        if request.gradient is not None:
            features = model.extractor(self._images(client, at - self.batch))
            features.backward(request.gradient.to(features.device))
            with torch.no_grad():
                for parameter in model.extractor.parameters():
                    parameter -= 0.05 * parameter.grad
        images = self._images(client, at)
        done = len(images) == 0
        client.state = {
            "model": model.state_dict(),
            "cursor": {"at": torch.tensor(0 if done else at + self.batch)},
        }
        if done:
            return Activations(None, None)
        with torch.no_grad():
            return Activations(model.extractor(images), client.train.targets[at : at + self.batch])

    def _images(self, client: Client, at: int) -> Tensor:
        rows = client.train.index[at : at + self.batch]
        return client.world.normalise(client.train.images[rows]).to(client.world.device)

    def evaluate(self, server: Server, state: ServerModel, fleet: Fleet) -> Metrics:
        with fleet.aside("evaluation"):
            extractors = {
                r.client: r.body.weights for r in fleet.ask(self.extractor, dict.fromkeys(fleet.clients(), Ask()))
            }
        scores = {}
        for client, weights in sorted(extractors.items()):
            edge = server.client_model(client, server.world.client_architecture(client).facts.initial)
            load_weights(tensors_of(edge.extractor), weights, "extractor")
            scores[client] = server.evaluate(nn.Sequential(edge.extractor, state.model)).accuracy
        return Metrics(sum(scores.values()) / len(scores), clients=scores)

    @on_client
    def extractor(self, client: Client, request: Ask) -> Extractor:
        return Extractor(client.model(client.state.get("model")).extractor.state_dict())
