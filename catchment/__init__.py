"""Catchment: federated learning of large models from weak devices.

Importing it changes nothing in the process and loads nothing else: a name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from catchment.version import __version__ as __version__

if TYPE_CHECKING:
    from catchment.codecs import Stage as Stage
    from catchment.config.experiment import Experiment as Experiment
    from catchment.core.client import Client as Client
    from catchment.core.fleet import Fleet as Fleet
    from catchment.core.intake import Reply as Reply
    from catchment.core.method import Method as Method, Metrics as Metrics, on_client as on_client
    from catchment.core.server import Server as Server
    from catchment.data import Batch as Batch, Dataset as Dataset, Normalisation as Normalisation, Samples as Samples
    from catchment.errors import CatchmentError as CatchmentError, RunError as RunError, UserError as UserError
    from catchment.exchange.message import Message as Message
    from catchment.exchange.payload import Payload as Payload
    from catchment.launch import resume as resume, run as run
    from catchment.learning.steps import PerSample as PerSample, loss_function as loss_function
    from catchment.learning.training import Weights as Weights
    from catchment.models import SplitModel as SplitModel
    from catchment.robust import Attack as Attack
    from catchment.robust.aggregators import Aggregator as Aggregator
    from catchment.runs.finished import Run as Run
    from catchment.simulation.devices import DeviceProfile as DeviceProfile
    from catchment.studies.study import Study as Study

_MODULES = {
    "Aggregator": "catchment.robust.aggregators",
    "Attack": "catchment.robust",
    "Batch": "catchment.data",
    "CatchmentError": "catchment.errors",
    "Client": "catchment.core.client",
    "Dataset": "catchment.data",
    "DeviceProfile": "catchment.simulation.devices",
    "Experiment": "catchment.config.experiment",
    "Fleet": "catchment.core.fleet",
    "Message": "catchment.exchange.message",
    "Method": "catchment.core.method",
    "Metrics": "catchment.core.method",
    "Normalisation": "catchment.data",
    "Payload": "catchment.exchange.payload",
    "PerSample": "catchment.learning.steps",
    "Reply": "catchment.core.intake",
    "Run": "catchment.runs.finished",
    "RunError": "catchment.errors",
    "Samples": "catchment.data",
    "Server": "catchment.core.server",
    "SplitModel": "catchment.models",
    "Stage": "catchment.codecs",
    "Study": "catchment.studies.study",
    "UserError": "catchment.errors",
    "Weights": "catchment.learning.training",
    "loss_function": "catchment.learning.steps",
    "on_client": "catchment.core.method",
    "resume": "catchment.launch",
    "run": "catchment.launch",
}  # where each public name is

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
