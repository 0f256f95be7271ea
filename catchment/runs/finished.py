"""A run as an object: what it measured, and the models it made, read from its directory."""

from __future__ import annotations

import copy
import dataclasses
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from catchment.client.state import ClientState, StoredVersions
from catchment.config.experiment import Experiment
from catchment.core.client import AVERAGE
from catchment.core.server import Server
from catchment.core.world import World
from catchment.errors import UserError
from catchment.export import FORMATS, Written, write_model
from catchment.export.formats import FromPixels
from catchment.files import write_atomically
from catchment.learning.moving_average import MovingAverage, StateAverages
from catchment.names import did_you_mean
from catchment.randomness import torch_generator
from catchment.runs.card import model_card
from catchment.runs.checkpoint import Checkpoints, Loaded
from catchment.runs.directory import load_experiment
from catchment.runs.journal import to_dict
from catchment.runs.reading import RunFiles
from catchment.runs.state import unflatten
from catchment.tasks import Score

COMPARED = 32  # test images on which an exported program is compared with its model


class Run:
    """The directory of a run, finished or not: its records, and its models as the last checkpoint has them.

    Records are read at once, as dicts with the fields of `catchment.runs.records`; the checkpoint and the data set (for
    the shape of its images) only for models. If the experiment names code of its own, that takes `trust`.
    """

    def __init__(self, directory: str | Path, *, trust: bool = False) -> None:
        self.directory = Path(directory)
        self._trust = trust
        files = RunFiles.read(self.directory)
        self.rounds = [to_dict(record) for record in files.rounds]  # as in rounds.jsonl
        self.result = None if files.result is None else to_dict(files.result)  # as in result.json; None: not finished

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment; that of a run which another version wrote is refused, as its models are."""
        return load_experiment(self.directory, trust=self._trust)

    @property
    def round(self) -> int:
        """The round after which the models were saved: the last one if the run is finished."""
        return self._checkpoint.round

    @cached_property
    def world(self) -> World:
        """The experiment's data, models and method, on the CPU; `world.normalise` prepares images for the models."""
        # Where it trained may not be here, and weights are float32 whatever it trained in.
        return dataclasses.replace(self.experiment, device="cpu", precision="float32").build_world()

    def client_model(self, client: int) -> nn.Module:
        """The model that a client would deploy: one new module in evaluation mode, from normalised images to logits."""
        clients = self.experiment.data.clients
        if not 0 <= client < clients:
            raise UserError(f"{self.directory} has no client {client}; its clients are 0 to {clients - 1}")
        return _own(self.world.method.client_model(self._server, self._state, client, self._kept(client)))

    def model(self) -> nn.Module:
        """The global model or the server's, in evaluation mode; a server half takes features in place of images."""
        return _own(self.world.method.server_model(self._server, self._state))

    def export(
        self,
        out: str | Path,
        client: int | None = None,
        *,
        format: str = "safetensors",
        pixels: bool = False,
        force: bool = False,
    ) -> Written:
        """Write the model of a client, or `model()` if none is given, as a file, and beside it a card in Markdown.

        A program (`"torch"`, `"onnx"`, `"executorch"`) is kept only if it computes what the model does on test images;
        with `pixels` it normalises images itself. Files that are there are replaced only with `force`.
        """
        path = Path(out)
        card = path.with_name(f"{path.name}.md")
        if format not in FORMATS:
            raise UserError(f'unknown format "{format}"; {did_you_mean(format, FORMATS)}')
        if path.suffix != FORMATS[format]:
            raise UserError(f"{path} must end with {FORMATS[format]}, by which predict knows the format {format}")
        if pixels and format == "safetensors":
            raise UserError("safetensors holds weights, which cannot normalise images; choose another --format")
        for file in (path, card):
            if file.exists() and not force:
                raise UserError(
                    f"{file} is there already; choose another file, or replace it with --force (force=True)"
                )
        floats = self.world.data.test.images.dtype != torch.uint8
        if pixels and floats:
            raise UserError(
                "this run's images are floating-point numbers, which nothing normalises; export without --pixels"
            )
        model = self.model() if client is None else self.client_model(client)
        images, score = self._test_images(pixels), self._score(model)
        takes = "pixels" if pixels else "floats" if floats else "normalised"
        half = score is None and not self._takes(model, images)
        about = {**self._about(client, model), "input": "features" if half else takes}
        taken = FromPixels(model, self.world.normalise) if pixels else model
        written = write_model(taken, images, about, format, path)
        text = model_card(about, written, score, self.result)
        write_atomically(card, (text.rstrip() + "\n").encode())
        return written

    def _test_images(self, pixels: bool) -> Tensor:
        """Some images as a model takes them; noise if there are no test samples here."""
        world = self.world
        rows = world.data.test.index[:COMPARED]
        images = world.data.test.images[rows]
        if not len(rows):
            noise = torch.randint(256, (COMPARED, *world.data.dataset.shape), generator=torch_generator(0, "export"))
            images = noise.byte()
        return images.float() if pixels else world.normalise(images)

    @staticmethod
    def _takes(model: nn.Module, images: Tensor) -> bool:
        """Whether a model takes images; a server's half does not."""
        try:
            with torch.no_grad():
                model(images[:1])
        except RuntimeError:
            return False
        return True

    def _score(self, model: nn.Module) -> Score | None:
        """What a model reaches on the test set; None if there is none, or it does not take images."""
        try:
            return self.world.evaluate(model, self.world.data.test) if len(self.world.data.test) else None
        except RuntimeError:
            return None

    def _kept(self, client: int) -> ClientState:
        """What a client remembered at the checkpoint, with its moving average for its model if it has one."""
        kept = self._remembered(client)
        average = kept.pop(AVERAGE, None)
        return {**kept, "model": MovingAverage.from_tensors(average).weights} if average else kept

    def _remembered(self, client: int) -> ClientState:
        """The same as it is kept; nothing of a client that was never asked."""
        inflight = self._checkpoint.fleet.inflight
        if self.experiment.engine != "flower":
            return dict(inflight.transport.states.get(client, {}))
        states = self.directory / "flower" / "clients"
        if not self.world.method.persistent:
            return {}
        if not states.exists():
            raise UserError(f"what client {client} remembers is on its device, in the folder of its --state, not here")
        versions = next(states.glob(f"*/client-{client}/versions"), None)
        return {} if versions is None else StoredVersions(versions).newest(inflight.sequence)

    @cached_property
    def _checkpoint(self) -> Loaded:
        loaded = Checkpoints(self.directory / "checkpoints").latest()
        if loaded is None:
            raise UserError(
                f"{self.directory} has no checkpoint that can be read, so there is no model in it yet; "
                f"go on with: catchment resume {self.directory}"
            )
        return loaded

    @cached_property
    def _server(self) -> Server:
        return Server(self.world)

    @cached_property
    def _state(self) -> Any:
        """What the server remembered at the checkpoint, with moving averages for models if the run kept some."""
        method = self.world.method
        state = unflatten(self._checkpoint.state, self._checkpoint.tensors, method.init(self._server))
        averages = StateAverages(self.world.average, method.models)
        averages.load(self._checkpoint.averages)
        averages.put_in(state)
        return state

    def _about(self, client: int | None, model: nn.Module) -> dict[str, Any]:
        """What an exported file says of its model."""
        world, data = self.world, self.experiment.data
        about = {
            "experiment": self.experiment.name,
            "method": self.experiment.method["name"],
            "round": self.round,
            "client": client,
            "model": self._name(client or 0, model),
            "client_model": world.client_models if client is None else world.client_architecture(client).name,
            "server_model": world.server_model,
            "task": world.task.name,
            "data": data.name,
            "partition": data.partition["name"],
            "clients": data.clients,
            "classes": world.data.dataset.classes,
            "shape": world.data.dataset.shape,
            "scale": world.normalise.scale,
            "mean": world.normalise.mean,
            "std": world.normalise.std,
        }
        return {name: value for name, value in about.items() if value is not None}

    def _name(self, client: int, model: nn.Module) -> str | None:
        """The architecture of a model; `edge+half` for an extractor with the server's half; None if it is neither."""
        edge = self.world.client_architecture(client).name
        if [name for name, _ in model.named_children()] == ["extractor", "server"]:
            return f"{edge}+{self.world.server_model}"
        weights = {name: tensor.shape for name, tensor in model.state_dict().items()}
        known = [self.world.client_architecture(client)]
        known += [] if self.world.server_model is None else [self.world.server_architecture]
        for architecture in known:
            if weights == {name: tensor.shape for name, tensor in architecture.facts.initial.items()}:
                return architecture.name
        return None


def _own(module: nn.Module) -> nn.Module:
    """A copy that the caller may change, as methods reuse their modules."""
    return copy.deepcopy(module).eval()
