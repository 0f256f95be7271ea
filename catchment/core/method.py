"""A method is one file: its hyper-parameters, one server routine for one round, and named client handlers."""

from __future__ import annotations

import functools
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from catchment.errors import ProtocolError, UserError
from catchment.exchange.payload import Payload
from catchment.tasks import quality
from catchment.tasks.quality import Quality

if TYPE_CHECKING:
    from torch import Tensor, nn

    from catchment.client.state import ClientState
    from catchment.codecs import Rule
    from catchment.core.fleet import Fleet
    from catchment.core.server import Server
    from catchment.core.world import World
    from catchment.tasks import Score

State = TypeVar("State")
Handler = TypeVar("Handler", bound=Callable[..., Payload])


@dataclass(frozen=True)
class Metrics:
    """What an evaluation found. `accuracy` is the method's headline number, a share between 0 and 1."""

    accuracy: float
    server: Mapping[str, float] | None = None  # the server's model, where there is one
    clients: Mapping[int, float] | None = None  # accuracy of each client's own model
    more: Mapping[str, float] = field(default_factory=dict)  # anything else worth a column
    images: Mapping[str, Tensor] = field(default_factory=dict)  # normalised, [N, C, H, W], for people to look at
    self_reported: tuple[str, ...] = ()  # which of "accuracy" and "clients" the clients measured themselves
    quality: Quality | None = None  # of what `accuracy` is of: one model, or the mean over clients
    by_client: Mapping[int, Quality] = field(default_factory=dict)  # each client's own model

    @staticmethod
    def of_model(score: Score, by_client: Mapping[int, Quality] | None = None, **more: Any) -> Metrics:
        """One model, the global or the server's; beside it, clients' models of their own."""
        if by_client is not None:
            more |= {"clients": {k: own.accuracy for k, own in by_client.items()}, "by_client": by_client}
        return Metrics(score.accuracy, score.as_dict(), quality=score.quality, **more)

    @staticmethod
    def of_clients(by_client: Mapping[int, Quality], **more: Any) -> Metrics:
        """The mean over clients, each with a model of its own."""
        clients = {k: own.accuracy for k, own in by_client.items()}
        accuracy = fmean(clients.values()) if clients else 0.0
        return Metrics(accuracy, clients=clients, quality=quality.mean(by_client.values()), by_client=by_client, **more)


@dataclass(frozen=True)
class SameForAll(Mapping[int, float]):
    """The accuracy of each client where all have one model: one number, however many clients there are."""

    clients: Sequence[int]
    accuracy: float

    def __getitem__(self, client: int) -> float:
        if client not in self.clients:
            raise KeyError(client)
        return self.accuracy

    def __iter__(self) -> Iterator[int]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)


class Method(ABC, Generic[State]):
    """A federated algorithm. Subclass it as a frozen dataclass of hyper-parameters.

    A method has no mutable state of its own: what the server remembers is in `State` (a dataclass of tensors, plain
    values, modules and optimisers), what a client remembers is in `client.state` under the names in `persistent`.
    Handlers that run on the client are marked `@on_client` and take `(client, request)`.
    """

    persistent: ClassVar[tuple[str, ...]] = ()
    models: ClassVar[tuple[str, ...]] = ()  # fields of State that are models: modules, weights, or dicts of either
    moving_average: ClassVar[float] = 0.0  # of `evaluation.average`, the default; for models that are trained in place
    derives_weights: ClassVar[bool] = False  # clients draw their first weights themselves: the server sends none
    takes_features: ClassVar[bool] = False  # the server's model goes on from the clients' features
    client_form: ClassVar[str] = "{}"  # of the models that it is meant for, by the names of ordinary ones
    needs_server_model: ClassVar[bool] = False  # a whole one, as one that goes on from features always is needed
    any_task: ClassVar[bool] = (
        False  # takes the loss from `client.task`, and needs neither logits nor one class a sample
    )
    aggregates: ClassVar[bool] = False  # uses `server.aggregator`, so that [aggregation] can replace the mean

    @property
    def codecs(self) -> tuple[str | Rule, ...]:
        """Codec rules that belong to the method; they come before those of `[wire] codecs`."""
        return ()

    @property
    def sends(self) -> bool:
        """Whether it uses `fleet.send`: each client gets its own request, and nobody is waited for."""
        return False

    @property
    def rate_shares(self) -> Mapping[str, float]:
        """By submodule of the clients' models, the share of their learning rate that it has; elsewhere it is 1."""
        return {}

    def check(self, world: World) -> None:
        """Refuse, before anything runs, a world in which this method cannot work."""
        return

    @abstractmethod
    def init(self, server: Server) -> State:
        """The server's state before the first round."""

    @abstractmethod
    def round(self, server: Server, state: State, fleet: Fleet) -> None:
        """One round; changes `state` in place."""

    @abstractmethod
    def evaluate(self, server: Server, state: State, fleet: Fleet) -> Metrics:
        """Measure without changing anything."""

    def client_model(self, server: Server, state: State, client: int, kept: ClientState) -> nn.Module:
        """The model that a client would deploy; `kept` is what the client remembers, empty if it was never asked.

        Optional. The caller copies the module, so it may be one that is reused.
        """
        raise UserError(
            f"{type(self).__name__} does not give clients a model of their own; a method does so with client_model"
        )

    def server_model(self, server: Server, state: State) -> nn.Module:
        """The global model, or the server's own. Optional, and copied by the caller, like `client_model`."""
        raise UserError(f"{type(self).__name__} has no model on the server; ask for that of a client")


def on_client(function: Handler) -> Handler:
    """Mark a method's function as one that runs on the client: `def name(self, client, request: Q) -> R`."""
    function.__dict__["on_client"] = True
    return function


class Contract(typing.NamedTuple):
    """The payload classes that a handler takes and returns."""

    request: type[Payload]
    reply: type[Payload]


def handlers(method: type[Method[Any]]) -> list[str]:
    """The names of a method's client handlers."""
    return [name for name in dir(method) if getattr(getattr(method, name), "on_client", False)]


def replies(method: type[Method[Any]]) -> set[str]:
    """The names of all fields that the clients of a method send."""
    return {sent.name for handler in handlers(method) for sent in fields(contract(method, handler).reply)}  # type: ignore[arg-type]


@functools.cache
def contract(method: type[Method[Any]], handler: str) -> Contract:
    """What a handler takes and returns, from its annotations."""
    function = getattr(method, handler, None)
    if not getattr(function, "on_client", False):
        raise ProtocolError(f"{method.__name__} has no client handler {handler}; is it marked @on_client?")
    hints = typing.get_type_hints(function)
    found = Contract(*(hints.get(name, object) for name in ("request", "return")))
    if not all(isinstance(kind, type) and issubclass(kind, Payload) for kind in found):
        raise ProtocolError(
            f"{method.__name__}.{handler} must be written as (self, client, request: Q) -> R with Payload classes Q, R"
        )
    return found
