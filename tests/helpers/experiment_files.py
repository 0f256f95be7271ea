"""Two experiment files, and what is said when something in them is changed."""

import tomllib

import pytest

from catchment.config.experiment import Experiment
from catchment.errors import CatchmentError

EXAMPLE = """
name = "fedavg-digits"
seed = 0
rounds = 10
engine = "inprocess"
workers = 2
[method]
name = "fedavg"
client_epochs = 1
[data]
name = "digits"
clients = 8
train = 1200
test = 290
public = 0.5
partition = { name = "dirichlet", alpha = 0.5 }
[models]
client = "cnn"
server = "resnet19"
[optimizer.client]
name = "adam"
lr = 1e-3
weight_decay = 1e-4
batch_size = 32
[optimizer.server]
name = "adam"
lr = 1e-3
[participation]
fraction = 1.0
[devices]
profile = "phone"
[wire]
codecs = []
"""

SMALL = """
workers = 1
[method]
name = "fedprox"
client_epochs = 2
mu = 0.5
[data]
train = 100
test = 50
clients = 2
[models]
client = "mlp"
"""

WIDE = """
name = "says \\"é\\" 漢字"
threads = 2
strict = true
device = "cpu"
[method]
name = "centralized"
model = "server"
client_epochs = 3
server_epochs = 2
[data]
name = "cifar10"
root = "somewhere/else"
partition = { name = "table", counts = [[1, 2], [3, 4]], scale = true }
augment = ["crop", "flip"]
download = true
mean = [0.5]
std = [0.25, 0.25, 1]
[models]
client = ["cnn", "resnet8"]
server = "resnet(1,1,2)"
[optimizer.client]
name = "sgd"
momentum = 0.9
nesterov = true
[optimizer.server]
name = "adamw"
amsgrad = true
[participation]
fraction = 0.25
deadline = 30
[devices]
profile = ["mine", "phone"]
profiles.mine = { compute = 1e6, up = inf, latency = 1, availability = 0.5 }
[faults]
drop = 0.1
crash = 1
delay = 0.5
delay_seconds = 5
[evaluation]
every = 3
[checkpoint]
every = 7
"""


def changed(text=EXAMPLE, **changes):
    """An experiment with dotted keys changed; `__` stands for the dot."""
    return Experiment.from_dict(tomllib.loads(text), {key.replace("__", "."): v for key, v in changes.items()})


def said(action):
    """The text of the error that an action raises: one sentence, no traceback's leftovers."""
    with pytest.raises(CatchmentError) as caught:
        action()
    text = str(caught.value)
    assert "\n" not in text
    return text


def load_error(key, value, text=EXAMPLE):
    return said(lambda: Experiment.from_dict(tomllib.loads(text), {key: value}))


def world_error(key, value):
    return said(lambda: Experiment.from_dict(tomllib.loads(SMALL), {key: value}).build_world())
