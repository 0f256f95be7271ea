"""Whole runs with codecs on the wire: real bytes, nothing lost in trouble, evaluation untouched."""

from __future__ import annotations

import pytest
from worlds import TROUBLE, experiment

import catchment


def run(tmp_path, name, codecs, **more):
    return catchment.run(experiment(name, wire={"codecs": codecs}, **more), out=tmp_path)


@pytest.mark.parametrize(
    ("chain", "share"), [("fp16", 0.5), ("int8", 0.26), ("int4", 0.13), ("int4+sparse+zstd", 0.12)]
)
def test_the_ledger_books_what_really_travels(tmp_path, chain, share):
    whole = run(tmp_path / "whole", "fedgkt", [], rounds=1)
    coded = run(tmp_path / "coded", "fedgkt", [f"features={chain}"], rounds=1)
    ratio = coded["bytes_by_field"]["up"]["features"] / whole["bytes_by_field"]["up"]["features"]
    assert 0.05 < ratio <= share
    assert coded["bytes"]["evaluation"] == whole["bytes"]["evaluation"]
    others = [name for name in whole["bytes_by_field"]["up"] if name not in ("features", "(framing)")]
    assert all(coded["bytes_by_field"]["up"][name] == whole["bytes_by_field"]["up"][name] for name in others)


def test_a_lossless_chain_changes_bytes_and_nothing_else(tmp_path):
    whole = run(tmp_path / "whole", "fedgkt", [])
    coded = run(tmp_path / "coded", "fedgkt", ["*=sparse+zstd"])
    assert coded["fingerprint"] == whole["fingerprint"]
    assert coded["bytes"]["up"] < whole["bytes"]["up"]


def test_a_lossy_chain_changes_results(tmp_path):
    whole = run(tmp_path / "whole", "fedgkt", [])
    coded = run(tmp_path / "coded", "fedgkt", ["features=int4"])
    assert coded["fingerprint"] != whole["fingerprint"]


def test_after_lost_replies_both_sides_understand_each_other(tmp_path):
    e = experiment("fedavg, coded", rounds=8, participation={"fraction": 1.0}, **TROUBLE)
    result = catchment.run(e, out=tmp_path / "run")
    assert result["lost"] > 3
    assert result["failed"] == 0


def test_error_feedback_survives_in_the_clients_state(tmp_path):
    """A tenth of each update goes up; what is left out comes later, and FedAvg still learns."""
    longer = {"rounds": 8, "participation": {"fraction": 1.0}}
    few = run(tmp_path / "few", "fedavg", ["up:weights/*=update+feedback+topk(0.1)"], **longer)
    lost = run(tmp_path / "lost", "fedavg", ["up:weights/*=update+topk(0.1)"], **longer)
    whole = run(tmp_path / "whole", "fedavg", [], **longer)
    assert few["bytes_by_field"]["up"]["weights"] < 0.3 * whole["bytes_by_field"]["up"]["weights"]
    assert few["fingerprint"] != lost["fingerprint"]
    assert few["accuracy"] > 0.5
