"""What a server tells devices of a run."""

from __future__ import annotations

import tomllib

from catchment import Experiment
from catchment.device.consent import USED, announced


def told(**table: object) -> str:
    return announced(Experiment.from_dict({"rounds": 2, **table}))


def test_the_servers_folders_and_how_it_runs_are_not_told() -> None:
    plain = told(data={"name": "digits"})
    own = {"data": {"name": "digits", "root": "/here", "download": True}, "path": "/there", "workers": 7}
    own["models"] = {"weights": "/elsewhere/first.safetensors"}
    assert told(**own, name="x", engine="flower", flower={"port": 9}, strict=True, checkpoint={"every": 5}) == plain


def test_all_that_a_device_uses_is_told() -> None:
    assert set(tomllib.loads(told())) == set(USED)
