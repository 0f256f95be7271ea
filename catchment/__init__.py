"""Catchment: federated learning of large models from weak devices."""

import os

# Read when PyTorch is first imported: idle OpenMP threads sleep instead of spinning. Spinning ones take the cores
# from the workers and from other processes, which slows small models down by ten times and more.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from catchment.client import Client
from catchment.data import Batch, Dataset, Normalisation, Samples
from catchment.errors import CatchmentError, RunError, UserError
from catchment.experiment import Experiment
from catchment.fleet import Fleet, Reply
from catchment.message import Message, Payload
from catchment.method import Method, Metrics, on_client
from catchment.models import SplitModel
from catchment.run import resume, run
from catchment.server import Server
from catchment.training import Weights, fit
from catchment.transports.devices import Device

__version__ = "0.1.0"

__all__ = [
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
