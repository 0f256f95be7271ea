"""The probe: how much of its clients' images a curious server can rebuild from the features that they send.

The server is honest but curious: it follows the protocol, and on the side puts images of its own (public and test
samples) through an extractor that it knows and learns the inverse, from features to images, as in He, Zhang, Lee, Model
inversion attacks against collaborative inference, ACSAC 2019. It knows the first extractor, which everybody makes from
the seed, and where its own state has another (the current one in split learning, a stem that it sent), that one too.
The inverse is a linear map from patches of features to pixels, or a small convolutional decoder.

The probe's scores need the private images, so it is for simulations. It changes nothing in a run.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from catchment.core.client import Client
from catchment.core.declarations import Values, declarations, leaving
from catchment.core.method import Method, contract
from catchment.core.server import Server
from catchment.core.worker import WorkerCache
from catchment.core.world import World
from catchment.data import Samples
from catchment.data.pictures import pixels
from catchment.errors import ExperimentError, UserError
from catchment.exchange.message import Message
from catchment.exchange.request import Request
from catchment.learning.training import load_weights, tensors_of
from catchment.privacy.decoders import convolutional_decoder, feature_maps, known_features, linear_decoder, standardised
from catchment.privacy.likeness import correlation, correlations, structural_similarity
from catchment.randomness import derive, torch_generator
from catchment.reading import Count

CHUNK = 1000  # images that are compared at once
SHOWN = 8  # private images in a picture: the best rebuilt ones, and the median


@dataclass(frozen=True)
class ProbeSettings:
    """`[probe]`."""

    inversion: bool = False
    """Simulate a curious server that tries to rebuild private images from the features it gets; results do not
    change."""
    images: Count = 1000
    """At most this many of the server's own images are learned from."""
    attacked: Count = 500
    """At most this many of a client's images are rebuilt."""
    epochs: Count = 20
    """Epochs of the convolutional decoder."""

    def check(self, world: World) -> None:
        """Refuse a world in which there are no features to invert, or no images to learn from."""
        if not self.inversion:
            return
        if not any(sent.kind == "features" for sent in leaving(type(world.method))):
            raise ExperimentError(
                f"probe.inversion rebuilds images from features, and clients of {type(world.method).__name__} send "
                "none; leave [probe] out"
            )
        if any(architecture.facts.features is None for architecture in world.client_architectures):
            raise ExperimentError("probe.inversion needs client models with an extractor, such as resnet8")


@dataclass(frozen=True)
class Likeness:
    """How similar rebuilt images are to the private ones: means over images."""

    correlation: float
    psnr: float  # dB
    ssim: float
    identified: float  # share of rebuilt images whose nearest private image is the original


class ObservedFeatures(NamedTuple):
    """Features from one client, with the images that they were made of."""

    features: Tensor
    images: Tensor  # as they were put into the extractor if they were augmented
    ids: Tensor


@dataclass(frozen=True)
class Inverted:
    """What the attacks on one client's features of one round gave."""

    round: int
    client: int
    images: int  # that were rebuilt
    private: int  # images of all clients, among which the originals are searched
    attacks: Mapping[str, Likeness]  # by name
    best: str  # of the attacks: the one with the highest correlation
    picture: Tensor  # private images above, rebuilt ones below, [2 * n, C, H, W]

    def record(self) -> dict[str, Any]:
        """For a file."""
        attacks = {name: asdict(likeness) for name, likeness in self.attacks.items()}
        numbers = {name: getattr(self, name) for name in ("round", "client", "images", "private")}
        return {**numbers, "best": self.best, "attacks": attacks}


class CuriousServer:
    """Keeps the features of the first client that sends some in a round, then tries to invert them."""

    def __init__(self, settings: ProbeSettings, world: World) -> None:
        self.settings = settings
        self.world = world
        self._observed: list[ObservedFeatures] = []
        self._first: Request | None = None

    def observe(self, request: Request, message: Message) -> None:
        """Keep features of private samples."""
        if self._first is not None and (request.client, request.round) != (self._first.client, self._first.round):
            return
        if sum(len(seen.ids) for seen in self._observed) >= self.settings.attacked:
            return
        for features, rows, ids in _features(type(self.world.method), request.handler, message):
            if matched := self._matched(request, features, rows, ids):
                self._first = request
                self._observed.append(matched)

    def attack(self, server: Server, state: Any) -> Inverted | None:
        """Rebuild images from the features seen since the last call; None if there were none."""
        request, self._first = self._first, None
        if request is None:
            return None
        features, sent, ids = (torch.cat(parts)[: self.settings.attacked].cpu() for parts in zip(*self._observed))
        self._observed = []
        private = self.world.data.private
        plain = self.world.normalise(private.images[ids])
        own = self._own_images()
        shape, seed = own.shape[1:], derive(self.world.seed, "probe")
        rebuilt = {"mean image": own.mean(0).expand(len(ids), *shape)}
        for name, extractor in self._extractors(server, state, request.client).items():
            known = standardised(feature_maps(known_features(extractor, own, features), shape))
            maps = standardised(feature_maps(features, shape))
            rebuilt[f"linear map, {name} extractor"] = linear_decoder(known, own)(maps)
            rebuilt[f"decoder, {name} extractor"] = convolutional_decoder(known, own, self.settings.epochs, seed)(maps)
        scores: dict[str, tuple[Tensor, Likeness]] = {}
        for name, images in rebuilt.items():
            truth = max((plain, sent), key=lambda view: float(correlation(images, view).mean()))
            scores[name] = truth, self._likeness(images, truth, ids)
        best = max((name for name in scores if name != "mean image"), key=lambda name: scores[name][1].correlation)
        picture = _picture(rebuilt[best], scores[best][0])
        attacks = {name: likeness for name, (_, likeness) in scores.items()}
        return Inverted(server.round, request.client, len(ids), len(private), attacks, best, picture)

    def _matched(self, request: Request, features: Tensor, rows: str, ids: Tensor | None) -> ObservedFeatures | None:
        """Features with the images that they were made of; None if these are not known, or are public."""
        client = Client(self.world, request, {}, WorkerCache())
        if rows == "B" and ids is None:
            if request.turn >= client.batches_per_epoch:
                return None  # the same images again
            batch = client.batch(request.turn)
            return ObservedFeatures(features, batch.images, batch.ids) if len(features) == len(batch.ids) else None
        ids = client.train.ids if ids is None else ids
        if (
            rows == "N_0"
            or len(features) != len(ids)
            or not len(ids)
            or not bool(torch.isin(ids, client.train.ids).all())
        ):
            return None
        few = Samples(client.train.images, client.train.labels, ids[: self.settings.attacked])
        images = torch.cat([batch.images for batch in client.batches(few, shuffle=False)])
        return ObservedFeatures(features[: len(few)], images, few.ids)

    def _own_images(self) -> Tensor:
        """Images that the server has anyway, normalised."""
        data = self.world.data
        parts = [part.images[part.index] for part in (data.public, data.test) if part is not None]
        images = torch.cat(parts)
        order = torch.randperm(len(images), generator=torch_generator(self.world.seed, "probe", "images"))
        return self.world.normalise(images[order[: self.settings.images]])

    def _extractors(self, server: Server, state: Any, client: int) -> dict[str, nn.Module]:
        """The extractors that the server knows: the first, and what its own state makes of it."""
        model = self.world.client_architecture(client).build()
        if self.world.method.derives_weights:  # from the seed, which the server knows
            load_weights(tensors_of(model), self.world.first_weights(client), "the client's model")
        first = model.get_submodule("extractor")
        try:
            known = self.world.method.client_model(server, state, client, {}).get_submodule("extractor")
        except (UserError, AttributeError):  # the method has no such model, or one without an extractor
            return {"first": first}
        before, now = tensors_of(first), tensors_of(known)
        if before.keys() != now.keys() or all(torch.equal(before[name], now[name]) for name in before):
            return {"first": first}
        current = copy.deepcopy(first)
        load_weights(tensors_of(current), now, "the extractor")
        return {"first": first, "current": current}

    def _likeness(self, rebuilt: Tensor, truth: Tensor, ids: Tensor) -> Likeness:
        private, normalise = self.world.data.private, self.world.normalise
        seen, true = pixels(rebuilt, normalise), pixels(truth, normalise)
        error = (seen - true).square().flatten(1).mean(1).clamp(min=1e-10)
        images = (normalise(private.images[rows]) for rows in torch.split(private.index, CHUNK))
        others = [correlations(rebuilt, part) for part in images]
        # The original is compared as the extractor saw it; it counts only if no other private image is nearer.
        nearest = torch.cat(others, 1).masked_fill(private.index == ids[:, None], -1).amax(1)
        identified = correlation(rebuilt, truth) > nearest
        return Likeness(
            float(correlation(rebuilt, truth).mean()),
            float(-10 * error.log10().mean()),
            float(structural_similarity(seen, true).mean()),
            float(identified.float().mean()),
        )


def _features(method: type[Method[Any]], handler: str, message: Message) -> Iterator[tuple[Tensor, str, Tensor | None]]:
    """The features in a reply, what their rows are (N_k, N_0 or B), and the ids of the rows if sent.

    Of several tensors the first: others are of the same samples, as those of mirror images are.
    """
    declared = declarations(contract(method, handler).reply).items()
    ids = next((message.tensors.get(name) for name, d in declared if isinstance(d, Values) and d.kind == "ids"), None)
    for name, declaration in declared:
        if isinstance(declaration, Values) and declaration.kind == "features" and name in message.tensors:
            yield message.tensors[name], declaration.sizes[0].rpartition(" <= ")[2], ids
            return


def _picture(rebuilt: Tensor, truth: Tensor) -> Tensor:
    """Private images, and below them the rebuilt ones: the most similar, and last the median."""
    order = correlation(rebuilt, truth).argsort(descending=True)
    shown = torch.cat([order[: min(SHOWN, len(order)) - 1], order[len(order) // 2].view(1)])
    return torch.cat([truth[shown], rebuilt[shown]])
