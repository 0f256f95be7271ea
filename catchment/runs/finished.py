"""A run as an object: what it measured, and the models it made, read from its directory."""

from __future__ import annotations

import copy
import dataclasses
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn

from catchment.config.experiment import Experiment
from catchment.core.client import AVERAGE
from catchment.core.server import Server
from catchment.core.versions import ClientState, StoredVersions
from catchment.core.world import World
from catchment.errors import UserError
from catchment.exchange.message import plain
from catchment.files import write_atomically
from catchment.learning.moving_average import MovingAverage, StateAverages
from catchment.runs.checkpoint import Checkpoints, Loaded
from catchment.runs.converter import to_dict
from catchment.runs.directory import load_experiment
from catchment.runs.reading import RunFiles
from catchment.runs.state import unflatten


class Run:
    """The directory of a run, finished or not: its records, and its models as the last checkpoint has them.

    Records are read at once, as dicts with the fields of `catchment.runs.records`; the checkpoint and the data set (for
    the shape of its images) only for models.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        files = RunFiles.read(self.directory)
        self.rounds = [to_dict(record) for record in files.rounds]  # as in rounds.jsonl
        self.result = None if files.result is None else to_dict(files.result)  # as in result.json; None: not finished

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment; that of a run which another version wrote is refused, as its models are."""
        return load_experiment(self.directory)

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

    def export(self, out: str | Path, client: int | None = None, *, force: bool = False) -> nn.Module:
        """Write the model of a client, or `model()` if none is given, as a safetensors file; returns that model.

        The metadata of the file say where it comes from, and how images must be normalised: text as it is, all else
        as JSON. A file that is there is replaced only with `force`.
        """
        path = Path(out)
        if path.exists() and not force:
            raise UserError(f"{path} is there already; choose another file, or replace it with --force (force=True)")
        model = self.model() if client is None else self.client_model(client)
        # Cloned because safetensors refuses tensors that share memory, as tied weights do.
        tensors = {name: plain(tensor).clone() for name, tensor in model.state_dict().items()}
        about = {
            name: value if isinstance(value, str) else json.dumps(value) for name, value in self._about(client).items()
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror}") from None
        write_atomically(path, safetensors.torch.save(tensors, about))
        return model

    def _kept(self, client: int) -> ClientState:
        """What a client remembered at the checkpoint, with its moving average for its model if it has one."""
        kept = self._remembered(client)
        average = kept.pop(AVERAGE, None)
        return {**kept, "model": MovingAverage.from_tensors(average).weights} if average else kept

    def _remembered(self, client: int) -> ClientState:
        """The same as it is kept; nothing of a client that was never asked."""
        fleet = self._checkpoint.fleet
        if self.experiment.engine != "flower":
            return dict(fleet.transport.states.get(client, {}))
        states = self.directory / "flower" / "clients"
        if not self.world.method.persistent:
            return {}
        if not states.exists():
            raise UserError(f"what client {client} remembers is on its device, in the folder of its --state, not here")
        versions = next(states.glob(f"*/client-{client}/versions"), None)
        return {} if versions is None else StoredVersions(versions).newest(fleet.sequence)

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

    def _about(self, client: int | None) -> dict[str, Any]:
        """The metadata of an exported file."""
        world = self.world
        about = {
            "experiment": self.experiment.name,
            "method": self.experiment.method["name"],
            "round": self.round,
            "client": client,
            "client_model": world.client_models if client is None else world.client_architecture(client).name,
            "server_model": world.server_model,
            "classes": world.data.dataset.classes,
            "shape": world.data.dataset.shape,
            "scale": world.normalise.scale,
            "mean": world.normalise.mean,
            "std": world.normalise.std,
        }
        return {name: value for name, value in about.items() if value is not None}


def _own(module: nn.Module) -> nn.Module:
    """A copy that the caller may change, as methods reuse their modules."""
    return copy.deepcopy(module).eval()
