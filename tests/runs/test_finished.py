"""A run as an object: the models it hands over are those it measured."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest
import torch
from marks import quick
from safetensors import safe_open
from safetensors.torch import load_file
from worlds import METHODS, ONE_EACH, PHONES, experiment

import catchment
from catchment.core.method import Method
from catchment.errors import DataError, UserError

GIVING = [name for name in METHODS if type(experiment(name).build_method()).client_model is not Method.client_model]


def accuracy(run, model):
    return run.world.evaluate(model, run.world.data.test).accuracy


def accuracies(run):
    return [accuracy(run, run.client_model(client)) for client in range(run.world.clients)]


def first_rounds(directory, rounds, tmp_path):
    """What a run that stopped after some rounds would have left."""
    stopped = tmp_path / "stopped"
    shutil.copytree(directory, stopped)
    (stopped / "result.json").unlink()
    for path in (stopped / "checkpoints").glob("round-*"):
        if int(path.stem[-6:]) > rounds:
            path.unlink()
    return stopped


def check_models_are_those_of_the_result(run):
    """Every client's handed-over model scores what the run measured."""
    found = accuracies(run)
    if run.result["clients"] is None:
        assert found == [run.result["accuracy"]] * len(found)
    else:
        spread = {"mean": pytest.approx(sum(found) / len(found), rel=1e-12), "min": min(found), "max": max(found)}
        assert run.result["clients"]["accuracy"] == spread


def test_these_methods_give_clients_a_model():
    assert {"fedavg", "fedprox", "standalone", "centralized"} <= set(GIVING)


@pytest.mark.parametrize("name", quick(ONE_EACH, GIVING))
def test_a_clients_model_scores_what_the_result_says(name, tmp_path):
    catchment.run(experiment(name, **PHONES), out=tmp_path / "run")
    run = catchment.Run(tmp_path / "run", trust=True)
    assert run.round == 3
    check_models_are_those_of_the_result(run)


@pytest.mark.parametrize("name", ["standalone", "centralized"])
def test_a_clients_model_after_resume_too(name, tmp_path):
    def stop(record):
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catchment.run(experiment(name), out=tmp_path / "run", observe=stop)
    catchment.resume(tmp_path / "run")
    check_models_are_those_of_the_result(catchment.Run(tmp_path / "run"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A stand-alone run in which one of the five clients was asked, once."""
    directory = tmp_path_factory.mktemp("runs") / "alone"
    catchment.run(experiment("standalone", rounds=1, participation={"fraction": 0.2}), out=directory)
    return directory


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    """A run of FedAvg."""
    directory = tmp_path_factory.mktemp("runs") / "averaged"
    catchment.run(experiment("fedavg"), out=directory)
    return directory


# ---- what a run knows -------------------------------------------------------------------------------------------


def test_a_run_has_its_experiment_records_and_result(averaged):
    run = catchment.Run(averaged)
    assert run.experiment == dataclasses.replace(experiment("fedavg"), path=None)  # nothing beside it is looked for
    assert catchment.Run(averaged, trust=True).experiment == experiment("fedavg")
    assert [record["round"] for record in run.rounds] == [1, 2, 3]
    assert run.result == json.loads((averaged / "result.json").read_text())
    assert run.result["accuracy"] == run.rounds[-1]["accuracy"]


def test_an_unfinished_run_has_the_models_of_its_last_checkpoint(averaged, tmp_path):
    run = catchment.Run(first_rounds(averaged, 2, tmp_path))
    assert run.result is None
    assert run.round == 2
    assert accuracy(run, run.model()) == run.rounds[1]["accuracy"] != run.rounds[2]["accuracy"]


def test_the_global_model_is_every_clients(averaged):
    run = catchment.Run(averaged)
    assert accuracy(run, run.model()) == run.result["server"]["accuracy"]
    for name, tensor in run.client_model(3).state_dict().items():
        assert torch.equal(tensor, run.model().state_dict()[name])


def test_centralized_gives_the_servers_model_where_it_trained_that(tmp_path):
    method = {"name": "centralized", "model": "server"}
    catchment.run(experiment("centralized", rounds=1, method=method, models={"server": "resnet11"}), out=tmp_path / "r")
    run = catchment.Run(tmp_path / "r")
    assert accuracy(run, run.model()) == accuracy(run, run.client_model(0)) == run.result["server"]["accuracy"]


def test_a_client_that_was_never_asked_has_the_first_weights(alone):
    run = catchment.Run(alone)
    entries = json.loads((alone / "ledger.jsonl").read_text())["entries"]
    asked = {client for entry in entries if entry["purpose"] == "training" for client in entry["clients"]}
    assert len(asked) == 1
    for client in range(5):
        first = run.world.first_weights(client)
        same = [torch.equal(tensor, first[name]) for name, tensor in run.client_model(client).state_dict().items()]
        assert all(same) is (client not in asked)


def test_models_are_in_evaluation_mode_and_belong_to_the_caller(averaged):
    run = catchment.Run(averaged)
    before = accuracy(run, run.client_model(0))
    model = run.client_model(0)
    assert not any(part.training for part in model.modules())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert accuracy(run, run.client_model(0)) == accuracy(run, run.client_model(1)) == before != accuracy(run, model)


def test_a_run_that_trained_elsewhere_hands_over_on_the_cpu(averaged, tmp_path):
    shutil.copytree(averaged, tmp_path / "run")
    text = (tmp_path / "run" / "experiment.toml").read_text()
    (tmp_path / "run" / "experiment.toml").write_text(text.replace('device = "cpu"', 'device = "cuda:7"'))
    assert next(catchment.Run(tmp_path / "run").model().parameters()).device.type == "cpu"


# ---- files ------------------------------------------------------------------------------------------------------


def test_an_exported_file_holds_the_model_and_says_what_it_is(alone, tmp_path):
    run = catchment.Run(alone)
    written = run.export(tmp_path / "new" / "model.safetensors", client=1)
    exported = load_file(written.path)
    assert exported.keys() == run.client_model(1).state_dict().keys()
    assert all(torch.equal(exported[name], tensor) for name, tensor in run.client_model(1).state_dict().items())
    with safe_open(tmp_path / "new" / "model.safetensors", "pt") as file:
        assert file.metadata() == {
            "experiment": "standalone",
            "method": "standalone",
            "round": "1",
            "client": "1",
            "model": "cnn",
            "client_model": "cnn",
            "task": "classification",
            "data": "digits",
            "partition": run.experiment.data.partition["name"],
            "clients": "5",
            "input": "normalised",
            "classes": json.dumps([str(digit) for digit in range(10)]),
            "shape": "[1, 8, 8]",
            "scale": json.dumps(run.world.normalise.scale),
            "mean": json.dumps(run.world.normalise.mean),
            "std": json.dumps(run.world.normalise.std),
        }


def test_a_whole_model_is_exported_as_extractor_and_classifier(tmp_path):
    catchment.run(experiment("centralized", rounds=1, models={"client": "resnet20"}), out=tmp_path / "run")
    run = catchment.Run(tmp_path / "run")
    run.export(tmp_path / "model.safetensors")
    names = set(load_file(tmp_path / "model.safetensors"))
    assert {name.split(".")[0] for name in names} == {"extractor", "classifier"}
    assert names == set(run.world.client_architecture(0).build().state_dict())
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert "client" not in file.metadata()
        assert file.metadata()["client_model"] == '["resnet20"]'


def test_weights_that_a_model_uses_twice_are_exported_under_both_names(tmp_path):
    tied = {"client": "models_of_users:tied"}
    catchment.run(experiment("fedavg", rounds=1, models=tied), out=tmp_path / "run")
    catchment.Run(tmp_path / "run", trust=True).export(tmp_path / "model.safetensors")
    exported = load_file(tmp_path / "model.safetensors")
    assert torch.equal(exported["1.weight"], exported["2.weight"])


def test_a_file_is_replaced_only_by_force(averaged, tmp_path):
    run = catchment.Run(averaged)
    (tmp_path / "model.safetensors").write_text("mine")
    with pytest.raises(UserError, match=r"model\.safetensors is there already; choose another file, or .* --force"):
        run.export(tmp_path / "model.safetensors")
    assert (tmp_path / "model.safetensors").read_text() == "mine"
    run.export(tmp_path / "model.safetensors", force=True)
    assert load_file(tmp_path / "model.safetensors")


def test_a_place_that_cannot_be_written_is_one_sentence(averaged, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"model\.safetensors cannot be written: "):
        catchment.Run(averaged).export(tmp_path / "file" / "model.safetensors")


# ---- what cannot be had -----------------------------------------------------------------------------------------


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="nowhere holds no run"):
        catchment.Run(tmp_path / "nowhere")
    (tmp_path / "experiment.toml").write_text("name = 3")
    with pytest.raises(UserError, match="is not what a run writes: name is 3"):
        catchment.Run(tmp_path)


def test_a_run_without_a_checkpoint_has_records_but_no_model(averaged, tmp_path):
    stopped = first_rounds(averaged, 0, tmp_path)
    run = catchment.Run(stopped)
    assert len(run.rounds) == 3
    for ask in (run.model, lambda: run.client_model(0), lambda: run.round):
        with pytest.raises(UserError, match=rf"has no checkpoint .* go on with: catchment resume {stopped}"):
            ask()


@pytest.mark.parametrize("client", [-1, 5])
def test_a_client_that_is_not_there_is_refused(client, averaged):
    with pytest.raises(UserError, match=rf"has no client {client}; its clients are 0 to 4"):
        catchment.Run(averaged).client_model(client)


def test_a_model_that_a_method_does_not_have_is_refused(alone, tmp_path):
    with pytest.raises(UserError, match="Standalone has no model on the server; ask for that of a client"):
        catchment.Run(alone).model()
    nothing = {"name": "worlds_by_hand:HandlersOnly"}
    catchment.run(experiment("fedavg", rounds=1, method=nothing), out=tmp_path / "run")
    with pytest.raises(UserError, match="HandlersOnly does not give clients a model of their own"):
        catchment.Run(tmp_path / "run", trust=True).client_model(0)


def test_records_need_no_data_set_but_models_do(averaged, tmp_path):
    shutil.copytree(averaged, tmp_path / "run")
    text = (tmp_path / "run" / "experiment.toml").read_text().replace('name = "digits"', 'name = "cifar10"')
    (tmp_path / "run" / "experiment.toml").write_text(text.replace("[data]\n", f'[data]\nroot = "{tmp_path}"\n'))
    run = catchment.Run(tmp_path / "run")
    assert run.round == len(run.rounds) == 3
    with pytest.raises(DataError, match='"cifar10" is not at'):
        run.client_model(0)
