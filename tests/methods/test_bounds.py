"""Stand-alone and centralized training equal plain loops."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from worlds import experiment

import catchment
from catchment.core.server import Server
from catchment.data import batches
from catchment.errors import ExperimentError, UserError
from catchment.learning.training import load_weights, tensors_of
from catchment.randomness import derive

LAST = {"evaluation": {"average": 0.0}}  # weights, in place of a moving average


def test_standalone_equals_uninterrupted_training_of_each_client(tmp_path):
    """Weights and optimiser states that travel through the client's memory change nothing, channels-last included."""
    e = experiment("standalone", rounds=3, participation={"fraction": 1.0}, models={"client": "cnn"}, **LAST)
    result = catchment.run(e)
    world = e.build_world()
    accuracies = []
    for client in range(world.clients):
        model = world.client_architecture(client).build()
        load_weights(tensors_of(model), world.first_weights(client), "the client's model")
        optimizer = world.client_optimizer.build(model.parameters())
        for round_ in (1, 2, 3):
            seed = derive(world.seed, "shuffle", 0, "training", client, round_, 0)
            for batch in batches(world.private(client), 32, normalise=world.normalise, seed=seed, channels_last=True):
                optimizer.zero_grad()
                F.cross_entropy(model(batch.images), batch.labels).backward()
                optimizer.step()
        model.eval()
        with torch.no_grad():
            logits = model(world.normalise(world.data.test.images[world.data.test.index]))
        accuracies.append(int((logits.argmax(1) == world.data.test.targets).sum()) / len(world.data.test))
    assert result["clients"]["accuracy"]["min"] == min(accuracies)
    assert result["clients"]["accuracy"]["max"] == max(accuracies)


def test_standalone_trains_nobody_else_and_sends_no_tensor(tmp_path):
    catchment.run(experiment("standalone"), out=tmp_path / "run")
    assert '"model' not in (tmp_path / "run" / "ledger.jsonl").read_text()


def test_centralized_books_the_upload_of_all_data_once(tmp_path):
    import json

    catchment.run(experiment("centralized"), out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    images = sum(len(e["clients"]) * e["tensors"].get("images", 0) for e in lines[0]["entries"])
    assert images == 300 * 64  # every private image crossed, a byte a pixel
    assert all(line["entries"] == [] for line in lines[1:])


def test_centralized_server_model_sees_public_data_too():
    shared = {"data": {"public": 0.4}, "models": {"server": "resnet11"}}
    all_data = catchment.run(experiment("centralized", method={"name": "centralized", "model": "server"}, **shared))
    private = catchment.run(experiment("centralized", **shared))
    assert all_data["data"]["public"] == 120
    assert all_data["costs"]["server"]["resnet11"]["parameters"] > private["costs"]["clients"]["cnn"]["parameters"]
    assert all_data["fingerprint"] != private["fingerprint"]


def test_a_server_alone_trains_on_public_data(tmp_path):
    settings = {"data": {"public": 0.4}, "models": {"client": "mlp", "server": "cnn"}, **LAST}
    result = catchment.run(experiment("standalone", rounds=2, **settings), out=tmp_path / "run")
    world = experiment("standalone", **settings).build_world()
    server = Server(world)
    model = server.model()
    optimizer = server.optimizer(model)
    for server.round in (1, 2):
        for batch in server.batches(server.public, world.server_optimizer.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(model(batch.images), batch.labels).backward()
            optimizer.step()
    assert result["server"] == server.evaluate(model).as_dict()
    trained = catchment.Run(tmp_path / "run").model().state_dict()
    assert all(torch.equal(tensor, trained[name]) for name, tensor in model.state_dict().items())


def test_without_public_data_or_with_a_half_no_server_trains():
    assert catchment.run(experiment("standalone", rounds=1))["server"] is None
    half = {"data": {"public": 0.4}, "models": {"client": "cnn", "server": "resnet10"}}
    assert catchment.run(experiment("standalone", rounds=1, **half))["server"] is None


def test_centralized_trains_one_model_an_architecture_each_by_itself(tmp_path):
    """The upper bound of a fleet with several models: each as if it were the only one."""
    both = catchment.run(experiment("centralized", models={"client": ["mlp", "cnn"]}), out=tmp_path / "both")
    alone = {name: catchment.run(experiment("centralized", models={"client": name})) for name in ("mlp", "cnn")}
    assert both["models"] == {name: {"accuracy": result["accuracy"]} for name, result in alone.items()}
    mlp, cnn = (alone[name]["accuracy"] for name in ("mlp", "cnn"))
    assert mlp != cnn
    assert abs(both["accuracy"] - (3 * mlp + 2 * cnn) / 5) < 1e-9  # clients 0, 2, 4 and 1, 3
    assert both["server"] is None
    run = catchment.Run(tmp_path / "both")
    assert "classifier.weight" in run.client_model(0).state_dict()  # the mlp's
    assert "classifier.4.weight" in run.client_model(1).state_dict()  # the cnn's
    with pytest.raises(UserError, match="there are 2 models, one an architecture; ask for that of a client"):
        run.model()


def test_accuracy_by_model_is_the_mean_over_the_clients_that_have_it(tmp_path):
    result = catchment.run(experiment("standalone", participation={"fraction": 1.0}))
    models = {name: own["accuracy"] for name, own in result["models"].items()}
    assert abs(result["accuracy"] - (3 * models["mlp"] + 2 * models["cnn"]) / 5) < 1e-9
    assert catchment.run(experiment("fedavg"))["models"] is None  # one model says nothing new


def test_public_data_with_other_classes_are_no_labelled_data():
    other = {"public": {"name": "models_of_users:letters"}}
    server = {"name": "centralized", "model": "server"}
    with pytest.raises(ExperimentError, match=r"trains on public samples and their labels, and those of data\.public"):
        experiment("centralized", method=server, models={"server": "cnn"}, data=other).build_world()
    assert experiment("standalone", data=other).build_world().data.public is not None
    with pytest.raises(ExperimentError, match="a stand-alone server trains on public samples and their labels, and"):
        experiment("standalone", data=other, models={"server": "cnn"}).build_world()
    with pytest.raises(ExperimentError, match="fedgems trains on public samples and their labels, and those of"):
        experiment("fedgems", data=other).build_world()
    with pytest.raises(ExperimentError, match=r"unless transfer_epochs = 0, and those of data\.public have other"):
        experiment("fedmd", data=other, method={"name": "fedmd", "transfer_epochs": 1}).build_world()
