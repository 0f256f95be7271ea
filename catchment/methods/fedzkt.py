"""FedZKT: Zhang, Wu, Yuan, Zero-Shot Knowledge Transfer towards Resource-Constrained Federated Learning, 2022.

Every device trains a model of its own architecture and sends its weights. On the server a generator looks for inputs
on which a global model and the ensemble of the devices' models disagree, the global model learns to agree there, and
then teaches every device's model on generated inputs. There are no public data.

Departures:
- A device joins the ensemble with its first upload; Algorithm 3 has random models of devices that were never heard.
- Equation 9 sums the cross-entropy over D_k; here both of its terms are divided by |D_k|, so that a batch is a mean.
- The anchor begins after a device's first transfer: before it, equation 9 would hold the device at random weights.
- Students keep the statistics of their batch normalisation, which are of real data that the server never sees.
- The rates of the global model and the generator drop, as section IV-A3 says; line 239 of Algorithm 3 has one eta_S for
  the global model and the students, which drops for both with `students = "dropping"`.
- n_D is 100 by default, 200 in the paper; the generator has 8 channels. Nearly all of the time is the server's.
- What the paper leaves open: the generator (that of Truong et al., whom it cites), the global model (`models.server`),
  and whether the learning rates drop in every round or over the run (`milestones`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from catchment.client.state import ClientState
from catchment.core.client import Client
from catchment.core.declarations import Loss, client_weights, like
from catchment.core.fleet import Fleet
from catchment.core.intake import Reply
from catchment.core.method import Method, Metrics, on_client
from catchment.core.server import Server
from catchment.core.world import World
from catchment.errors import Diverged, ModelError
from catchment.exchange.payload import Payload
from catchment.families import checks
from catchment.learning.losses import distillation, proximal
from catchment.learning.optimizers import OptimizerSettings, set_rate
from catchment.learning.precision import in_precision
from catchment.learning.training import Weights, copy_weights, load_weights, tensors_of
from catchment.models import build_generator, is_half
from catchment.randomness import seeded_globals, torch_generator
from catchment.reading import Count, NonNegative, ShareTo1

SHOWN = 36  # generated images in a report


@dataclass(frozen=True)
class Transferred(Payload):
    """A device's model after the transfer, down; nothing before the first one."""

    weights: dict[str, Tensor] | None = None  # w_k


@dataclass(frozen=True)
class OnDeviceModel(Payload):
    """A device's model after local training, up."""

    weights: Annotated[dict[str, Tensor], like(client_weights)]
    loss: Loss


@dataclass
class State:
    """What the server remembers."""

    model: nn.Module  # F
    optimizer: torch.optim.Optimizer
    generator: nn.Module  # G
    generator_optimizer: torch.optim.Optimizer
    weights: dict[int, Weights] = field(default_factory=dict)  # w_k of every device that was heard
    gradients: dict[str, float] = field(default_factory=dict)  # Figure 2: of the round's last batch


# ---- equations 3 to 5: the disagreement of F and the ensemble ----------------------------------------------------
# u are the logits of F, `[B, C]`, v those of the devices, `[K, B, C]`. A mean over the batch.


def kl_loss(u: Tensor, v: Tensor) -> Tensor:
    """Equation 3: KL(F || f_ens), where f_ens is the mean of the devices' softmax outputs."""
    log_ens = torch.logsumexp(F.log_softmax(v, 2), 0) - math.log(len(v))
    log_f = F.log_softmax(u, 1)
    return (log_f.exp() * (log_f - log_ens)).sum(1).mean()


def l1_loss(u: Tensor, v: Tensor) -> Tensor:
    """Equation 4: the l1 distance of logits."""
    return (u - v.mean(0)).abs().sum(1).mean()


def sl_loss(u: Tensor, v: Tensor) -> Tensor:
    """Equation 5, softmax l1: the l1 distance of softmax outputs."""
    return (u.softmax(1) - v.softmax(2).mean(0)).abs().sum(1).mean()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"sl": sl_loss, "kl": kl_loss, "l1": l1_loss}


def gradient_norms(u: Tensor, v: Tensor, images: Tensor) -> dict[str, float]:
    """The norm of each loss's gradient with respect to a generated input, mean over the batch (Figure 2)."""
    norms = {}
    for name, loss in LOSSES.items():
        (gradient,) = torch.autograd.grad(len(images) * loss(u, v), images, retain_graph=True)
        norms[name] = float(gradient.flatten(1).norm(dim=1).mean())
    return norms


@dataclass(frozen=True)
class FedZKT(Method[State]):
    """Zero-shot knowledge transfer."""

    models: ClassVar[tuple[str, ...]] = ("model", "weights")
    needs_server_model: ClassVar[bool] = True
    derives_weights: ClassVar[bool] = True
    client_epochs: Count = 5
    """T_l: epochs of local training per round."""
    iterations: Count = 100
    """n_D: iterations per round of distillation into the global model, and as many to the devices."""
    loss: Literal["sl", "kl", "l1"] = "sl"
    """Softmax l1, KL divergence or l1 of logits: equations 5, 3 and 4."""
    anchor: NonNegative = 1.0
    """The weight of equation 9; 0: none, as in Algorithm 2."""
    milestones: Literal["run", "round", "none"] = "run"
    """At 1/2 and 3/4 of the iterations of the run or of each round, eta_S and eta_G drop."""
    factor: ShareTo1 = 0.3
    """The factor by which they drop."""
    students: Literal["full", "dropping"] = "full"
    """Whether eta_S of the devices' models on the server drops as well."""
    generator: str = "generator"
    """A built-in generator, or your own `"module:function"`."""
    generator_lr: ShareTo1 = 1e-3
    """The learning rate of the generator's Adam."""
    noise: Count = 100
    """The dimensions of z."""
    width: Count = 8
    """The channels of the generator."""

    def check(self, world: World) -> None:
        """A global model that takes images, and a generator that makes them."""
        if world.server_model is None or is_half(world.server_model):
            raise ModelError(
                f"fedzkt distils into a global model that takes images, and models.server is {world.server_model}; "
                "set it to a whole model such as cnn or resnet18"
            )
        shape = world.data.dataset.shape
        with torch.no_grad():
            try:
                noise = torch.zeros(2, self.noise, device=world.device)
                made = tuple(self.first_generator(world, seed=0)(noise).shape)
            except RuntimeError as error:
                raise ModelError(f'generator "{self.generator}" cannot take noise [2, {self.noise}]: {error}') from None
        if made != (2, *shape):
            raise ModelError(f'generator "{self.generator}" makes {list(made)} of 2 noises; {[2, *shape]} is expected')

    def init(self, server: Server) -> State:
        """A fresh global model and generator."""
        model = server.model()
        generator = self.first_generator(server.world, server.seed("generator"))
        generator_optimizer = server.optimizer(generator, self.generator_settings(server))
        return State(model, server.optimizer(model), generator, generator_optimizer)

    def generator_settings(self, server: Server) -> OptimizerSettings:
        """G's Adam, whose rate follows the schedule of the server."""
        return OptimizerSettings(name="adam", lr=self.generator_lr, schedule=server.settings.schedule)

    def first_generator(self, world: World, seed: int) -> nn.Module:
        """G with random weights."""
        generator = build_generator(
            self.generator, world.data.dataset.shape, self.noise, self.width, seed, world.initial
        )
        generator.to(world.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        return in_precision(generator, world.precision, world.device)

    def round(self, server: Server, state: State, fleet: Fleet) -> None:
        """Algorithm 1: the active devices train, the server transfers; who is idle keeps its weights and teaches."""
        active = []
        bodies = {k: Transferred(state.weights.get(k)) for k in fleet.cohort()}
        images = self.shown(server, state)

        def accept(reply: Reply[OnDeviceModel]) -> str:
            with torch.no_grad():
                logits = server.client_model(reply.client, reply.body.weights).eval()(images)
            return checks.finite(logits, "generated images")

        for reply in fleet.ask(self.device_update, bodies, in_order=True, accept=accept):
            state.weights[reply.client] = reply.body.weights
            active.append(reply.client)
        if active:
            with seeded_globals(server.seed("dropout")):  # if the global model has any
                self.server_update(server, state, active)

    # ---- the device ----

    @on_client
    def device_update(self, client: Client, request: Transferred) -> OnDeviceModel:
        """Algorithm 2: T_l epochs of equation 9."""
        model = client.model(request.weights)
        batches = client.batches(epochs=self.client_epochs)
        w_k = request.weights if self.anchor else None
        mu = 2 * self.anchor / max(len(client.train), 1)  # 1 / |D_k| beside a mean is equation 9, which has a sum
        loss = client.fit(proximal, model, client.optimizer(model), batches, anchor=w_k, mu=mu)
        return OnDeviceModel(model.state_dict(), loss)

    # ---- the server ----

    def server_update(self, server: Server, state: State, active: Sequence[int]) -> None:
        """Algorithm 3: from the devices to the global model, and from there to the active devices."""
        models = {k: self.device_model(server, state, k) for k in sorted(state.weights)}
        self.to_global(server, state, list(models.values()))
        students = {k: models[k] for k in active}
        self.to_devices(server, state, list(students.values()))
        state.weights |= {k: copy_weights(student) for k, student in students.items()}

    def to_global(self, server: Server, state: State, devices: Sequence[nn.Module]) -> None:
        """n_D times: the generator raises the disagreement of F and f_ens (equation 2), F lowers it."""
        loss, f = LOSSES[self.loss], state.model.train()
        state.generator.train()
        for n, (z, again) in enumerate(self.noises(server, "to_global", pairs=True)):
            self.drop_rates(server, state, n)
            x = state.generator(z)
            u, v = f(x), logits_of(devices, x)
            if n == self.iterations - 1:
                state.gradients = gradient_norms(u, v, x)
            _step(state.generator_optimizer, -loss(u, v))
            with torch.no_grad():
                x = state.generator(again)
                v = logits_of(devices, x)
            value = loss(f(x), v)
            _step(state.optimizer, value)
        self.check_finite(server, "disagreement", value.item())

    def to_devices(self, server: Server, state: State, students: Sequence[nn.Module]) -> None:
        """n_D times: every student learns from F on generated inputs (equation 8, KL)."""
        optimizer = server.optimizer(nn.ModuleList(students))
        state.model.eval()
        for n, (z,) in enumerate(self.noises(server, "to_devices")):
            if self.students == "dropping":
                set_rate(optimizer, server.rate() * self.dropped(server, n))
            with torch.no_grad():
                x = state.generator(z)
                teacher = state.model(x)
            # A sum, so that every student steps as if it were alone.
            value = torch.stack([distillation(student, teacher, 1.0) for student in logits_of(students, x)]).sum()
            _step(optimizer, value)
        self.check_finite(server, "loss of the students", value.item())

    def noises(self, server: Server, purpose: str, pairs: bool = False) -> Iterator[list[Tensor]]:
        """z of n_D iterations, `[B, noise]`, one or two of them each."""
        generator = torch_generator(server.seed("noise", purpose))
        size = (server.settings.batch_size, self.noise)
        for _ in range(self.iterations):
            yield [torch.randn(size, generator=generator).to(server.device) for _ in range(2 if pairs else 1)]

    def check_finite(self, server: Server, what: str, value: float) -> None:
        """Stop rather than send weights that are not numbers."""
        if not math.isfinite(value):
            raise Diverged(
                f"the {what} is {value} in round {server.round}; a lower optimizer.server.lr, now "
                f"{server.settings.lr:g}, or another method.loss usually helps"
            )

    def drop_rates(self, server: Server, state: State, n: int) -> None:
        """Set the learning rates of F and G, eta_S and eta_G, for an iteration of this round."""
        dropped = self.dropped(server, n)
        set_rate(state.optimizer, server.rate() * dropped)
        set_rate(state.generator_optimizer, server.rate(self.generator_settings(server)) * dropped)

    def dropped(self, server: Server, n: int) -> float:
        """The share of the learning rates that the milestones leave in an iteration of this round."""
        done, of = n, self.iterations
        if self.milestones == "run":
            done, of = (server.round - 1) * self.iterations + n, server.rounds * self.iterations
        passed = (done >= of / 2) + (done >= of * 3 / 4) if self.milestones != "none" else 0
        return self.factor**passed

    def device_model(self, server: Server, state: State, client: int) -> nn.Module:
        """A module of its own for a device; in evaluation mode batch normalisation keeps its statistics."""
        architecture = server.client_architecture(client)
        model = architecture.build()
        load_weights(tensors_of(model), state.weights[client], architecture.name)
        return model.eval()

    # ---- what comes out ----

    def evaluate(self, server: Server, state: State, fleet: Fleet) -> Metrics:
        """The devices' models after the transfer, the first weights of those not heard yet; the global model beside."""
        devices = {k: server.evaluate(self.client_model(server, state, k, {})).quality for k in range(server.clients)}
        return Metrics.of_clients(
            devices,
            server=server.evaluate(state.model).as_dict(),
            more={f"gradient_{name}": norm for name, norm in state.gradients.items()},
            images={"generator": self.shown(server, state)},
        )

    def shown(self, server: Server, state: State) -> Tensor:
        """Some generated images, as the models see them; always of the same noise."""
        noise = torch.randn(SHOWN, self.noise, generator=torch_generator(server.shared_seed, "shown"))
        buffers = {name: buffer.clone() for name, buffer in state.generator.named_buffers()}
        state.generator.train()  # with the statistics of the batch, and without keeping them
        with torch.no_grad():
            return functional_call(state.generator, buffers, (noise.to(server.device),))  # type: ignore[no-any-return]

    def client_model(self, server: Server, state: State, client: int, kept: ClientState) -> nn.Module:
        """The device's model after its last transfer; the first weights if it was never heard."""
        return server.client_model(client, state.weights.get(client))

    def server_model(self, server: Server, state: State) -> nn.Module:
        """The global model."""
        return state.model


def logits_of(models: Sequence[nn.Module], images: Tensor) -> Tensor:
    """What every model makes of the same images, `[K, B, C]`."""
    return torch.stack([model(images) for model in models])


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step; gradients of weights that the optimiser does not hold, such as the teachers', are not computed."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"] if weight.requires_grad]
    optimizer.zero_grad()
    loss.backward(inputs=weights)  # type: ignore[no-untyped-call]
    optimizer.step()
