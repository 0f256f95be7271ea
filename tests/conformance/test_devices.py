"""Every handler and every server step runs on a device other than the CPU, and changes nothing by it."""

from __future__ import annotations

import pytest
import torch
from elsewhere import Elsewhere
from worlds import METHODS, experiment

import catchment
from catchment.learning import optimizers


@pytest.fixture(autouse=True)
def _modules_can_be_moved(monkeypatch):
    """Modules take parameters of another class, and optimisers are the same on both devices."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    monkeypatch.setattr(optimizers, "FUSED", ())
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)
    yield
    torch.__future__.set_swap_module_params_on_conversion(before)


def test_a_mix_of_devices_raises():
    with Elsewhere():
        there = torch.ones(3, device="meta")
        assert float((there + there.to("meta")).sum()) == 6
        assert torch.equal((2 * there).cpu(), torch.full((3,), 2.0))
        with pytest.raises(RuntimeError, match="tensors on two devices"):
            there + torch.ones(3)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_on_another_device_is_the_same(name):
    here = catchment.run(experiment(name, rounds=2, few=True))
    with Elsewhere():
        there = catchment.run(experiment(name, rounds=2, few=True, device="meta"))
    for key in ("accuracy", "clients", "bytes", "failed", "refused"):
        assert there[key] == here[key], key
    if name != "fedzkt":  # whose last digits depend on memory order, which is not carried through an ensemble here
        assert there["fingerprint"] == here["fingerprint"]
