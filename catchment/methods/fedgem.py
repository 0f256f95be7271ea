"""FedGEM and FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion, under review, 2021.

Small models of any architecture train on the devices, a larger one on the server; they teach each other with their
logits on a public labelled set X0. FedGEM: the server learns from the mean of all clients on all of X0. FedGEMS: it
asks only about samples that it gets wrong and never got right, and only of those who get them right.

Departures:
- The selection is made once per round, from the server's predictions at its start, so that one request per client
  carries all wanted samples. Algorithm 1 decides batch by batch, by the logits that the model trains with: that is
  `selection = "batch"`, one request per batch.
- The server's logits that go down are those after its training, in eval mode; the paper takes them as it goes along.
- Nobody right about a sample, which the paper leaves open: cross-entropy alone. An entropy of zero, which would weigh
  infinitely: entropies have a floor.
- With `data.augment`, teachers see plain images and students augmented ones: logits of a sample travel once per round,
  and a student sees another crop of it in every epoch.
- `start_epochs`: everybody learns the labels of X0 before teaching others; the paper starts at once (0).
- An ablation of Table 5 is not explained: here a path that is switched off leaves its samples to the next one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from catchment.core.client import Client
from catchment.core.fleet import Fleet
from catchment.core.method import Metrics, on_client
from catchment.core.server import Server
from catchment.core.world import World
from catchment.errors import ModelError
from catchment.exchange.payload import Payload
from catchment.families.logits import Predictions, check_public, gather, predictions, public_of
from catchment.families.own_models import OwnModels, Trained, client_scores
from catchment.learning.losses import task_loss
from catchment.learning.steps import PerSample, loss_function
from catchment.reading import AnyShare, Count, Positive, Whole

ENTROPY_FLOOR = 1e-3  # nats


@dataclass(frozen=True)
class Wanted(Payload):
    """The public samples that a client shall predict, down."""

    positions: Tensor | None = None  # int32 [n], ascending places in X0; None: all of it


@dataclass(frozen=True)
class ServerLogits(Payload):
    """The server's logits, down."""

    logits: Tensor  # L_s, [N_0, C]


@dataclass
class State:
    """What the server remembers."""

    model: nn.Module  # f_s
    optimizer: torch.optim.Optimizer
    pool: Tensor  # L_Global, [N_0, C]: the last right logits of each sample; FedGEMS fills it
    pooled: Tensor  # bool [N_0]: the sample is in the pool


@dataclass(frozen=True)
class Lesson:
    """What the server shall learn in a round, besides the labels."""

    teacher: Tensor  # [N_0, C], or a row for each sample of a batch
    distilled: Tensor  # bool [N_0]: the sample has a teacher


@dataclass(frozen=True)
class FedGEM(OwnModels[State]):
    """The mean of all clients teaches the server all of X0."""

    models: ClassVar[tuple[str, ...]] = ("model",)
    needs_server_model: ClassVar[bool] = True
    aggregates: ClassVar[bool] = True
    client_epochs: Count = 1
    """Epochs on private data."""
    public_epochs: Count = 1
    """Epochs of a client on X0."""
    server_epochs: Count = 1
    """Epochs of the server on X0."""
    start_epochs: Whole = 10
    """Epochs of everybody on the labels of X0, before the first transfer."""
    epsilon: AnyShare = 0.75
    """The share of cross-entropy where there is a teacher."""
    temperature: Positive = 1.0
    """The temperature of the softmax in distillation."""

    def check(self, world: World) -> None:
        """Public data with labels, and a server model that takes images."""
        name = type(self).__name__.lower()
        if world.server_model is None:
            raise ModelError(f"{name} trains a larger model on the server; set models.server, such as resnet56")
        check_public(world, name)
        world.need_public_labels(f"{name} trains on public samples and their labels")

    def init(self, server: Server) -> State:
        """A fresh server model and an empty pool."""
        model, n_0 = server.model(), len(public_of(server))
        pool = torch.zeros(n_0, server.classes)
        return State(model, server.optimizer(model), pool, torch.zeros(n_0, dtype=torch.bool))

    def round(self, server: Server, state: State, fleet: Fleet) -> None:
        """ServerExecute: knowledge fusion, server training, transfer to the clients."""
        cohort = fleet.cohort()
        if server.round == 1 and self.start_epochs:
            self.train_server(server, state, Lesson(state.pool, state.pooled), self.start_epochs)  # nobody teaches yet
        self.learn(server, state, fleet, cohort)
        l_s = ServerLogits(predictions(server, state.model, public_of(server)))
        fleet.tell(self.client_train, dict.fromkeys(fleet.idle(cohort), l_s))

    def learn(self, server: Server, state: State, fleet: Fleet, cohort: list[int]) -> None:
        """What the server does with what the clients know."""
        self.train_server(server, state, self.fuse(server, state, fleet, cohort), self.server_epochs)

    def fuse(self, server: Server, state: State, fleet: Fleet, cohort: list[int]) -> Lesson:
        """The mean logits of the clients on all samples."""
        n_0, classes = state.pool.shape
        came = gather(fleet, self.client_select, dict.fromkeys(cohort, Wanted()), n_0)
        if came is None:
            return Lesson(torch.zeros(n_0, classes), torch.zeros(n_0, dtype=torch.bool))
        return Lesson(server.aggregator(came, by_sample=True), torch.ones(n_0, dtype=torch.bool))

    def train_server(self, server: Server, state: State, lesson: Lesson, epochs: int) -> None:
        """Some epochs on X0: equations 1, 2 and 5, sample by sample."""
        public = public_of(server)
        server.fit(
            fusion_loss,
            state.model.train(),
            state.optimizer,
            server.batches(public, epochs=epochs),
            teacher=PerSample(lesson.teacher, public.ids),
            distilled=PerSample(lesson.distilled, public.ids),
            epsilon=self.epsilon,
            temperature=self.temperature,
        )

    # ---- the client ----

    @on_client
    def client_select(self, client: Client, request: Wanted) -> Predictions:
        """ClientSelect: the logits of the wanted samples; a client that has not begun trains on private data first."""
        model, _ = self.begun(client)
        wanted = public_of(client)
        if request.positions is not None:
            wanted = wanted.select(request.positions.long())
        return Predictions(predictions(client, model, wanted))

    @on_client
    def client_train(self, client: Client, request: ServerLogits) -> Trained:
        """ClientTrain: equation 6 on X0, then cross-entropy on private data."""
        model, optimizer = self.begun(client) if self.start_epochs else client.own_model()
        public = public_of(client)
        client.fit(
            fusion_loss,
            model,
            optimizer,
            client.batches(public, epochs=self.public_epochs),
            teacher=PerSample(request.logits, public.ids),
            epsilon=self.epsilon,
            temperature=self.temperature,
        )
        loss = client.fit(task_loss, model, optimizer, client.batches(epochs=self.client_epochs))
        client.keep(model, optimizer)
        return Trained(loss)

    def begun(self, client: Client) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The client's model; a new one is trained first, on the labels of X0 if it shall be, and on private data."""
        model, optimizer = client.own_model()
        if "model" not in client.state:
            client.fit(task_loss, model, optimizer, client.batches(public_of(client), epochs=self.start_epochs))
            client.fit(task_loss, model, optimizer, client.batches(epochs=self.client_epochs))
            client.keep(model, optimizer)
        return model, optimizer

    # ---- what comes out ----

    def evaluate(self, server: Server, state: State, fleet: Fleet) -> Metrics:
        """The server's model, and each client's own."""
        clients = client_scores(fleet, self.test)
        return Metrics.of_model(server.evaluate(state.model), clients, self_reported=("clients",))

    def server_model(self, server: Server, state: State) -> nn.Module:
        """The larger model."""
        return state.model


@dataclass(frozen=True)
class FedGEMS(FedGEM):
    """The server learns by itself what it can, and asks selected clients about the rest."""

    aggregates: ClassVar[bool] = False
    self_training: bool = True
    """Samples that the server predicts right are learned from labels alone."""
    self_distillation: bool = True
    """Samples that it predicted right before are learned from its own logits of then."""
    ensemble_distillation: bool = True
    """The rest is learned from the clients that predict it right."""
    selection: Literal["round", "batch"] = "round"
    """By predictions before training, or by the predictions of each batch."""

    def learn(self, server: Server, state: State, fleet: Fleet, cohort: list[int]) -> None:
        """Selection and training, one after the other or batch by batch."""
        if self.selection == "round":
            super().learn(server, state, fleet, cohort)
            return
        public, total = public_of(server), Counter[str]()

        def decide(ids: Tensor, l_s: Tensor) -> dict[str, Tensor]:
            lesson = self.paths(server, state, fleet, cohort, torch.searchsorted(public.ids, ids), l_s)
            total.update({name: int(count) for name, count in server.notes.items()})
            return {"teacher": lesson.teacher, "distilled": lesson.distilled}

        server.fit(
            fusion_loss,
            state.model.train(),
            state.optimizer,
            server.batches(public, epochs=self.server_epochs),
            observe=decide,
            epsilon=self.epsilon,
            temperature=self.temperature,
        )
        server.notes = dict(total)

    def fuse(self, server: Server, state: State, fleet: Fleet, cohort: list[int]) -> Lesson:
        """The selection of a round."""
        public = public_of(server)
        everything = torch.arange(len(public))
        return self.paths(server, state, fleet, cohort, everything, predictions(server, state.model, public))

    def paths(
        self, server: Server, state: State, fleet: Fleet, cohort: list[int], places: Tensor, l_s: Tensor
    ) -> Lesson:
        """SelectiveKnowledgeFusion of the samples at some places of X0: three paths, each sample takes one."""
        labels = public_of(server).targets[places]
        right = l_s.argmax(1) == labels
        pool, pooled = torch.where(right.unsqueeze(1), l_s, state.pool[places]), state.pooled[places] | right
        state.pool, state.pooled = state.pool.index_copy(0, places, pool), state.pooled.index_copy(0, places, pooled)

        by_itself = right & self.self_training
        from_pool = ~by_itself & pooled & self.self_distillation
        from_clients = ~by_itself & ~from_pool & self.ensemble_distillation
        rows = from_clients.nonzero().squeeze(1)
        rows = rows[places[rows].argsort()]

        teacher, distilled = pool.clone(), from_pool.clone()
        if len(rows):
            wanted = Wanted(places[rows].to(torch.int32))
            l_c = gather(fleet, self.client_select, dict.fromkeys(cohort, wanted), len(rows))
            if l_c is not None:
                alpha = client_weights(l_c, labels[rows])
                teacher[rows] = (alpha.unsqueeze(2) * l_c).sum(0)
                distilled[rows] = alpha.sum(0) > 0
        server.notes = {
            "self_training": int(by_itself.sum()),
            "self_distillation": int(from_pool.sum()),
            "ensemble_distillation": len(rows),
            "nobody_right": len(rows) - int(distilled[rows].sum()),
        }
        return Lesson(teacher, distilled)


# ---- equations ---------------------------------------------------------------------------------------------------


@loss_function
def fusion_loss(
    outputs: Tensor,
    labels: Tensor,
    teacher: Tensor,
    distilled: Tensor | None = None,
    *,
    epsilon: float,
    temperature: float,
) -> Tensor:
    """Equations 1, 2, 5 and 6, mean over samples: eps L_CE + (1 - eps) D_KL(teacher || outputs), L_CE if not distilled.

    Outputs and teacher are logits `[B, C]`, labels and distilled `[B]`; D_KL at temperature T is scaled by T^2. Without
    `distilled`, all samples are.
    """
    l_ce = F.cross_entropy(outputs, labels, reduction="none")
    d_kl = F.kl_div(
        F.log_softmax(outputs / temperature, 1),
        F.log_softmax(teacher / temperature, 1),
        reduction="none",
        log_target=True,
    ).sum(1)
    blend = epsilon * l_ce + (1 - epsilon) * temperature**2 * d_kl
    return (blend if distilled is None else torch.where(distilled, blend, l_ce)).mean()


def entropy(logits: Tensor) -> Tensor:
    """Equation 3: H(p) of each prediction in nats, `[..., C]` to `[...]`."""
    log_p = F.log_softmax(logits, -1)
    return -(log_p.exp() * log_p).sum(-1)


def client_weights(logits: Tensor, labels: Tensor) -> Tensor:
    """Equation 4: alpha `[K, n]` for logits `[K, n, C]`, a softmax of 1/H over those who are right, else 0."""
    reliable = logits.argmax(2) == labels
    confidence = 1 / entropy(logits).clamp(min=ENTROPY_FLOOR)
    return confidence.masked_fill(~reliable, -torch.inf).softmax(0).nan_to_num(0.0)  # 0 / 0 where nobody is right
