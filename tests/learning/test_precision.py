"""Lower precision of forward passes; where it runs, in a process of its own."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from catchment.errors import ExperimentError
from catchment.learning.precision import check_precision, in_precision

CPU = torch.device("cpu")
# oneDNN takes instructions for granted that some virtual machines announce and do not have.
SAFE = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}


def test_float32_leaves_a_module_as_it_is() -> None:
    model = nn.Linear(2, 2)
    assert in_precision(model, "float32", CPU) is model
    assert "forward" not in vars(model)


def test_a_device_without_autocast_is_refused() -> None:
    check_precision("float32", torch.device("meta"))
    check_precision("bfloat16", CPU)
    with pytest.raises(
        ExperimentError, match='precision is "bfloat16", and the PyTorch device "meta" has no automatic mixed'
    ):
        check_precision("bfloat16", torch.device("meta"))


PROGRAM = """
import copy, torch
from torch import nn
from catchment.learning.precision import in_precision
from catchment.models import build

cpu = torch.device("cpu")
images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
plain = build("cnn", (1, 8, 8), 10, 0)
model = in_precision(build("cnn", (1, 8, 8), 10, 0), "bfloat16", cpu)
seen = []
model.classifier.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].dtype))
logits = model(images)
assert seen == [torch.float32] and logits.dtype == torch.float32
assert not torch.equal(logits, plain(images)) and torch.allclose(logits, plain(images), atol=0.05)
assert model.extractor(images).dtype == torch.float32

logits.sum().backward()
assert {w.grad.dtype for w in model.parameters()} == {torch.float32}
assert model.state_dict().keys() == plain.state_dict().keys()

twin = copy.deepcopy(model)
with torch.no_grad():
    for weight in model.parameters():
        weight.zero_()
assert torch.equal(twin(images), logits) and not torch.equal(model(images), logits)
"""


def test_passes_are_in_bfloat16_and_all_that_comes_out_is_float32() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, env=SAFE, timeout=120)
