"""FedGKT: He, Annavaram, Avestimehr, Group Knowledge Transfer: Federated Learning of Large CNNs at the Edge, 2020.

Small CNNs train on the devices and send features and logits up; a large CNN trains on them at the server and sends its
logits back. The final model of client k is its extractor followed by the server's model; no client's weights travel.

Departures:
- Logits are matched by sample id. The authors' code matches them by batch number over shuffled loaders, which pairs
  unrelated samples.
- A sample has one teacher on the server, the client it belongs to, where equation 6 reads as a sum over clients.
- Everything starts from random weights: one edge model for all clients and one server model, both from the seed. The
  authors' code starts the clients from a centrally trained stem.
- The learning rate does not drop on a plateau.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from catchment.client import Client
from catchment.data import Batch, Samples
from catchment.errors import ExperimentError, ModelError, at_least
from catchment.fleet import Fleet
from catchment.losses import distillation
from catchment.message import Payload
from catchment.method import Method, Metrics, on_client
from catchment.models import check_pair
from catchment.optimizers import load_optimizer_tensors, optimizer_tensors
from catchment.server import Server
from catchment.training import fit
from catchment.world import World


@dataclass(frozen=True)
class Feedback(Payload):
    """The server's logits for a client's samples, down; nothing before the first transfer."""

    logits: Tensor | None = None  # z_s, [N_k, C]
    ids: Tensor | None = None  # [N_k], ascending


@dataclass(frozen=True)
class Knowledge(Payload):
    """What a client knows of its samples, up."""

    features: Tensor  # H, [N_k, ...]
    logits: Tensor  # z_k, [N_k, C]
    labels: Tensor  # y_k, [N_k]
    ids: Tensor  # [N_k], ascending


@dataclass(frozen=True)
class ServerModel(Payload):
    """The server's model, down, to be evaluated where it will run."""

    weights: dict[str, Tensor]


@dataclass(frozen=True)
class Accuracies(Payload):
    """Of one client on the test set."""

    stacked: float  # its extractor followed by the server's model
    edge: float  # its small model alone


@dataclass
class State:
    """What the server remembers."""

    model: nn.Module  # f_s
    optimizer: torch.optim.Optimizer
    feedback: dict[int, dict[str, Tensor]] = field(default_factory=dict)  # by client: the fields of a Feedback


@dataclass(frozen=True)
class FedGKT(Method[State]):
    """Group knowledge transfer."""

    persistent: ClassVar[tuple[str, ...]] = ("model", "optimizer")
    client_epochs: int = 1  # E_c
    server_epochs: int = 1  # E_s
    temperature: float = 3.0  # T
    alpha: float = 1.0  # weight of the distillation terms
    distill: Literal["none", "server-to-edge", "both"] = "both"
    asynchronous: bool = False  # train on each upload when it comes, answer at once, wait for nobody
    augment_features: bool = True  # extract from augmented images, as trained on; otherwise from plain ones

    def __post_init__(self) -> None:
        at_least("client_epochs", self.client_epochs, 1)
        at_least("server_epochs", self.server_epochs, 1)
        at_least("alpha", self.alpha, 0)
        if not self.temperature > 0:
            raise ExperimentError(f"temperature is {self.temperature}; a number above 0 is expected")

    def check(self, world: World) -> None:
        """Every client's extractor must fit the server's model."""
        if world.server_model is None:
            raise ModelError("fedgkt trains a server half on features; set models.server, such as resnet19")
        for edge in dict.fromkeys(world.client_architectures):
            half = world.server_architecture
            check_pair(edge.build(), half.build(), edge.shape, world.classes, edge.name, half.name)

    def init(self, server: Server) -> State:
        """A fresh server model."""
        model = server.model()
        return State(model, server.optimizer(model))

    def round(self, server: Server, state: State, fleet: Fleet) -> None:
        """Algorithm 1: local training in parallel, server training on all uploads, transfer back."""
        if self.asynchronous:
            fleet.send(self.local_training, {k: Feedback(**state.feedback.get(k, {})) for k in fleet.idle()})
            for reply in fleet.arrivals(self.local_training, count=server.world.clients):
                self.train_server(server, state, {reply.client: reply.body})
                fleet.send(self.local_training, {reply.client: Feedback(**state.feedback[reply.client])})
            return
        bodies = {k: Feedback(**state.feedback.get(k, {})) for k in fleet.cohort()}
        uploads = {reply.client: reply.body for reply in fleet.ask(self.local_training, bodies)}
        if uploads:
            self.train_server(server, state, dict(sorted(uploads.items())))

    def train_server(self, server: Server, state: State, uploads: Mapping[int, Knowledge]) -> None:
        """E_s epochs of equation 8 over batches that mix clients; the logits of the last epoch go back."""
        features = torch.cat([upload.features for upload in uploads.values()])  # [N, ...]
        labels = torch.cat([upload.labels for upload in uploads.values()])  # [N]
        z_k = torch.cat([upload.logits for upload in uploads.values()])  # [N, C]
        z_s = torch.empty_like(z_k)
        device = server.world.device

        def l_s(batch: Batch) -> Tensor:  # equation 6
            logits = state.model(batch.images)
            z_s[batch.ids.cpu()] = logits.detach().cpu()
            loss = F.cross_entropy(logits, batch.labels)
            if self.distill == "both":
                loss = loss + self.alpha * distillation(logits, z_k[batch.ids.cpu()].to(device), self.temperature)
            return loss

        state.model.train()
        samples = Samples(features, labels, torch.arange(len(labels)))
        size = server.world.server_optimizer.batch_size
        fit(state.optimizer, server.batches(samples, size, epochs=self.server_epochs, augment=False), l_s)
        parts = z_s.split_with_sizes([len(upload.labels) for upload in uploads.values()])
        for (client, upload), logits in zip(uploads.items(), parts):
            state.feedback[client] = {"logits": logits.clone(), "ids": upload.ids}

    @on_client
    def local_training(self, client: Client, request: Feedback) -> Knowledge:
        """ClientLocalTraining: E_c epochs of equation 10, then features and logits of every sample."""
        model = client.model(client.state.get("model"))
        optimizer = client.optimizer(model)
        load_optimizer_tensors(optimizer, client.state.get("optimizer", {}))
        fit(optimizer, client.batches(epochs=self.client_epochs), self.l_c(model, request))
        client.state = {"model": model.state_dict(), "optimizer": optimizer_tensors(optimizer)}
        return self.extract(client, model.eval())

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

    def extract(self, client: Client, model: nn.Module) -> Knowledge:
        """H and z_k of every sample of a client, in the order of ids."""
        parts = []
        with torch.no_grad():
            for batch in client.batches(shuffle=False, augment=self.augment_features):
                features = model.get_submodule("extractor")(batch.images)
                parts.append((features, model.get_submodule("classifier")(features), batch.labels, batch.ids))
        return Knowledge(*(torch.cat(tensors) for tensors in zip(*parts)))

    def evaluate(self, server: Server, state: State, fleet: Fleet) -> Metrics:
        """Each client runs its final model, where it is: the server's model travels, booked apart."""
        down = ServerModel(state.model.state_dict())
        with fleet.aside("evaluation"):
            replies = list(fleet.ask(self.test, dict.fromkeys(fleet.clients(), down), in_order=True))
        clients = {reply.client: reply.body.stacked for reply in replies}
        edge = fmean(reply.body.edge for reply in replies) if replies else 0.0
        return Metrics(fmean(clients.values()) if clients else 0.0, clients=clients, more={"edge_accuracy": edge})

    @on_client
    def test(self, client: Client, request: ServerModel) -> Accuracies:
        """The stacked model and the small model on the test set."""
        edge = client.model(client.state.get("model"))
        stacked = nn.Sequential(edge.get_submodule("extractor"), client.server_model(request.weights))
        return Accuracies(client.evaluate(stacked).accuracy, client.evaluate(edge).accuracy)
