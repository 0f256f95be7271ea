"""Fetching from the hub, without a network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from catchment.data import load
from catchment.data.download import HUB
from catchment.data.sources import STATISTICS, WITH_BOXES
from catchment.errors import DataError

datasets = pytest.importorskip("datasets")

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 28, 28), dtype=np.uint8)


def in_memory() -> Any:
    from PIL import Image

    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["no", "yes"])})

    def split(rows: range) -> Any:
        cells = {"image": [Image.fromarray(PIXELS[r]) for r in rows], "label": [r % 2 for r in rows]}
        return datasets.Dataset.from_dict(cells, features=features)

    return datasets.DatasetDict(train=split(range(4)), test=split(range(4, 6)), extra=split(range(6)))


def fetch(root: Path, name: str = "mnist") -> Any:
    return load(name, root, train=None, test=None, seed=0, download=True)


@pytest.fixture(autouse=True)
def quiet() -> Any:
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def test_a_missing_set_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, str]] = []
    monkeypatch.setattr(datasets, "load_dataset", lambda **call: calls.append(call) or in_memory())
    for _ in range(2):
        dataset = fetch(tmp_path)
        assert dataset.classes == ("no", "yes")
        assert dataset.train.images[:, 0].equal(torch.from_numpy(PIXELS[:4]))
        assert dataset.test.targets.tolist() == [0, 1]
    assert calls == [{"path": "ylecun/mnist"}]
    assert sorted(file.name for file in (tmp_path / "mnist").iterdir()) == ["test.parquet", "train.parquet"]


@pytest.mark.parametrize("split", ["train", "test"])
def test_an_interrupted_fetch_leaves_no_set(split: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load_dataset", lambda **call: in_memory())
    write = datasets.Dataset.to_parquet

    def interrupted(self: Any, path: Path, *rest: Any) -> None:
        write(self, path, *rest)
        if split in path.name:
            path.write_bytes(path.read_bytes()[:100])
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(datasets.Dataset, "to_parquet", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch(tmp_path)
    assert not (tmp_path / "mnist" / "train.parquet").exists()
    with pytest.raises(DataError, match='data set "mnist" is not at'):
        load("mnist", tmp_path, train=None, test=None, seed=0)
    assert len(fetch(tmp_path).train) == 4


def test_a_failed_fetch_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(**call: str) -> None:
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(DataError, match=r'fetching "svhn" \(ufldl-stanford/svhn\) .* failed: no route to the hub'):
        fetch(tmp_path, "svhn")


def test_without_the_package_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"needs the package datasets: pip install 'catchment-fl\[hub\]'"):
        fetch(tmp_path)


def test_every_named_set_can_be_fetched() -> None:
    assert HUB.keys() == STATISTICS.keys() - {"digits", *WITH_BOXES}
