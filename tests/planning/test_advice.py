"""Methods for a world, ranked by committed results."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import catchment
from catchment import Experiment
from catchment.planning import advice
from catchment.planning.advice import FOUND, advise, nearest, with_method

ROOT = Path(catchment.__file__).parents[1]


def test_what_is_installed_is_what_the_committed_results_say():
    assert json.loads(FOUND.read_text()) == runpy.run_path(str(ROOT / "benchmarks" / "found.py"))["found"]()


def world(**more):
    table = {
        "rounds": 1,
        "data": {"clients": 8, "train": 400, "test": 20, "partition": {"name": "dirichlet", "alpha": 0.5}},
    }
    return Experiment.from_dict({**table, **more})


def test_the_nearest_setting_shares_what_matters():
    near = nearest(world(), ["fedgkt", "standalone"], least=1)
    assert (near.study, near.data, near.clients) == ("demo", "digits", 8)
    assert nearest(world(), ["fedgkt", "standalone"], least=2) is None  # a baseline does not count
    assert not nearest(world(data={"clients": 2}), ["fedavg", "fedkgf"], least=2).boxes  # mAP is no accuracy
    assert nearest(world(data={"name": "bccd", "clients": 2}), ["fedavg", "fedkgf"], least=2).boxes
    public = world(data={"name": "cifar10", "clients": 8, "public": 0.5})
    assert nearest(public, ["fedmd", "dsfl"], least=2).public
    assert nearest(world(), ["nothing"]) is None


def test_methods_that_fit_are_ranked_and_the_others_say_why_not(monkeypatch):
    monkeypatch.setattr(advice, "METHODS", ("standalone", "fedmd", "fedgkt", "fedzkt", "fedavg"))
    found = advise(world(method={"name": "fedgkt"}, models={"client": "cnn", "server": "resnet37"}))
    assert found.setting.study == "fedgkt-headline-small"
    names = [one.method for one in found.methods if one.fits]
    assert names == ["fedgkt", "fedavg", "standalone"]  # 44.5, 38.8, 26.0
    assert found.methods[0].plan.leaves[0] == "features"
    why = {one.method: one.why_not for one in found.methods if not one.fits}
    assert why.keys() == {"fedmd", "fedzkt"}
    assert "data.public" in why["fedmd"]
    first = json.loads(json.dumps(found.as_json()))["methods"][0]
    assert (first["method"], first["seeds"], first["row"]) == ("fedgkt", 3, found.setting.methods["fedgkt"]["row"])


def test_codec_rules_and_servers_of_one_method_do_not_keep_others_out():
    codecs = ["features=int8", "up:weights=fp16", "*=zstd"]
    given = world(method={"name": "fedgkt"}, models={"client": "cnn"}, wire={"codecs": codecs})
    other = {name: with_method(given, name) for name in ("fedavg", "fedzkt", "splitfed", "standalone")}
    assert {name: one.wire.codecs for name, one in other.items()} == {
        "fedavg": ("up:weights=fp16", "*=zstd"),
        "fedzkt": ("up:weights=fp16", "*=zstd"),
        "splitfed": tuple(codecs),
        "standalone": ("*=zstd",),
    }
    servers = {name: one.models.server for name, one in other.items()}
    assert servers == {"fedavg": None, "fedzkt": "resnet11", "splitfed": "resnet10", "standalone": None}
    named = world(method={"name": "fedgkt"}, models={"client": "cnn", "server": "resnet55"})
    assert with_method(named, "splitfed").models.server == "resnet55"
    assert with_method(world(models={"client": "cnn"}), "fedgkt").models.server == "resnet10"
    assert with_method(world(models={"client": "cnn"}), "fedkgf").models.client == "kgf(cnn)"
    assert with_method(world(models={"client": "kgf(cnn,4)"}), "fedkgf").models.client == "kgf(cnn,4)"


def test_a_method_that_a_device_cannot_do_does_not_fit(monkeypatch):
    monkeypatch.setattr(advice, "METHODS", ("fedavg",))
    tiny = {"profile": "tiny", "profiles": {"tiny": {"memory": 0.001}}}
    (one,) = advise(world(method={"name": "fedavg"}, devices=tiny)).methods
    assert one.why_not.startswith("tiny: it has 0.001 MiB of memory")
