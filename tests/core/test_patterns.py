"""Names that fit nothing: a pattern in a codec rule or an attack is about something that the method sends."""

from __future__ import annotations

import pytest
from worlds import METHODS, experiment

from catchment.codecs import Codecs, could_match, matches
from catchment.core.patterns import check_rules
from catchment.errors import ExperimentError
from catchment.methods.fedavg import FedAvg
from catchment.methods.fedgkt import FedGKT
from catchment.methods.fedmd import FedMD
from catchment.methods.standalone import Standalone


@pytest.mark.parametrize(
    ("method", "rule", "sent"),
    [
        (FedAvg, "wieghts/*=int8", ": up go weights, buffers; down go weights, buffers"),
        (FedAvg, "features=int8", ": up go weights, buffers; down go weights, buffers"),
        (FedGKT, "down:features=int8", " down: up go features, logits, labels, ids; down go logits, "),
        (FedGKT, "features/*=int8", ": up go features, "),
        (FedGKT, "weights=int8", ": up go features, "),  # which go down for evaluation alone, where nothing is coded
        (FedMD, "rates=zstd", ": up go logits; down go logits"),
        (Standalone, "up:weights=int8", " up: up go no tensors; down go no tensors"),
    ],
)
def test_a_rule_that_fits_nothing_is_refused_and_the_fields_are_named(method, rule, sent):
    with pytest.raises(ExperimentError) as caught:
        check_rules(Codecs.parse([rule]).rules, method, "mine")
    assert str(caught.value).startswith(f'codec rule "{rule}" names nothing that mine sends{sent}')


def test_a_rule_that_could_fit_something_is_accepted():
    rules = ("weights=int8", "up:w*=fp16", "*.bias=fp16", "weights/head.?=zstd", "down:*s/[ab]=zstd", "*=zstd")
    check_rules(Codecs.parse(rules).rules, FedAvg, "fedavg")
    check_rules(Codecs.parse(["up:*=int8"]).rules, Standalone, "standalone")  # all of nothing
    check_rules(Codecs.parse(["down:start/*=fp16", "logits=fp16"]).rules, FedGKT, "fedgkt")
    check_rules(Codecs.parse(["down:logits=fp16"]).rules, FedMD, "fedmd")  # though replies to these are measures alone


def test_a_field_stands_for_all_its_tensors():
    assert matches("weights", "weights/conv.bias")
    assert matches("w?ights", "weights/conv.bias")
    assert not matches("weights", "weighted")
    assert not matches("conv", "weights/conv")
    assert not matches("weights/conv", "weights/conv.bias")


def test_a_pattern_could_be_about_tensors_whose_names_are_not_known():
    assert all(could_match(pattern, "a") for pattern in ("a/*", "*", "*b", "[ab]/x", "?/x"))
    assert not any(could_match(pattern, "a") for pattern in ("a", "b/*", "aa/*"))


def test_the_whole_experiment_is_refused_before_it_runs():
    with pytest.raises(ExperimentError, match='"weight=int8" names nothing that fedavg sends: up go weights'):
        experiment("fedavg", wire={"codecs": ["weight=int8"]}).build_world()
    with pytest.raises(ExperimentError, match=r'"weights/haed\.\*=int8" names nothing .* did you mean "weights/'):
        experiment("fedavg", wire={"codecs": ["weights/haed.*=int8"]}).build_world()
    attack = {"name": "sign-flip", "fields": ["weights", "features"]}
    with pytest.raises(
        ExperimentError, match=r'attack\.fields has "features", which names nothing that fedavg sends up'
    ):
        experiment("fedavg", attack=attack).build_world()


@pytest.mark.parametrize("name", METHODS)
def test_rules_that_methods_bring_fit_what_they_send(name):
    method = experiment(name).build_method()
    check_rules(Codecs.parse(method.codecs).rules, type(method), name)


def test_a_rule_that_fits_no_tensor_of_the_models_is_refused():
    """Statistics of batch normalisation go down with the weights, and come up apart from them."""
    world = experiment("fedcams").build_world()
    fitting = ("up:buffers/*running_var=zstd", "down:weights/*running_var=fp16", "weights/classifier.0.*=fp16")
    check_rules(Codecs.parse(fitting).rules, type(world.method), "fedcams", world)
    with pytest.raises(ExperimentError, match=r'" names nothing that fedcams sends up: .*; did you mean "buffers/'):
        check_rules(Codecs.parse(["up:weights/*running_var=fp16"]).rules, type(world.method), "fedcams", world)
    bare = experiment("smartidx, base kernels").build_world()
    check_rules(Codecs.parse(["buffers/*=zstd"]).rules, type(bare.method), "smartidx", bare)
