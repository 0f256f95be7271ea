"""Catchment: federated learning of large models from weak devices."""

__version__ = "0.1.0"

from catchment.process import set_up

set_up()  # before PyTorch is imported

from catchment.aggregators import Aggregator
from catchment.attacks import Attack
from catchment.client import Client
from catchment.data import Batch, Dataset, Normalisation, Samples
from catchment.errors import CatchmentError, RunError, UserError
from catchment.experiment import Experiment
from catchment.finished import Run
from catchment.fleet import Fleet, Reply
from catchment.message import Message, Payload
from catchment.method import Method, Metrics, on_client
from catchment.models import SplitModel
from catchment.run import resume, run
from catchment.server import Server
from catchment.training import Weights, fit
from catchment.transports.devices import Device

__all__ = [
    "Aggregator",
    "Attack",
    "Batch",
    "CatchmentError",
    "Client",
    "Dataset",
    "Device",
    "Experiment",
    "Fleet",
    "Message",
    "Method",
    "Metrics",
    "Normalisation",
    "Payload",
    "Reply",
    "Run",
    "RunError",
    "Samples",
    "Server",
    "SplitModel",
    "UserError",
    "Weights",
    "fit",
    "on_client",
    "resume",
    "run",
]
