"""FedAvg and FedProx with numbers worked by hand: two clients, a linear model from zero, full-batch SGD."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from worlds_by_hand import world

from catchment.core.client import Client
from catchment.core.expectations import Expectations
from catchment.core.fleet import Fleet
from catchment.core.ledger import Ledger
from catchment.core.method import on_client
from catchment.core.server import Server
from catchment.errors import ModelError
from catchment.families.weights import GlobalModel, LocalModel
from catchment.methods.fedavg import FedAvg
from catchment.methods.fedprox import FedProx
from catchment.robust.aggregators import Median
from catchment.simulation.inprocess import InProcess

# Client 0 has one sample x = (1, 0) of class 0, client 1 has three of x = (0, 2) of class 1.
CLIENTS = [([[1.0, 0.0]], [0]), ([[0.0, 2.0]] * 3, [1] * 3)]


def rounds(method, number: int, **settings):
    """The global weights after some rounds."""
    return after(world(method, CLIENTS, **settings), number)


def after(w, number: int):
    """The global weights of a world after some rounds."""
    method = w.method
    server = Server(w)
    fleet = Fleet(InProcess(w), method, Ledger(), expectations=Expectations.of(method, w), seed=0)
    state = method.init(server)
    for n in range(1, number + 1):
        server.round = n
        fleet.begin_round(n)
        method.round(server, state, fleet)
    return state.weights


def test_one_round_is_the_mean_of_local_steps_weighted_by_samples():
    # From zero weights p = (1/2, 1/2), so the gradient of the logits is p - y.
    # Client 0: dW = (p - y) x^T = [[-1/2, 0], [1/2, 0]];     W0 = -lr dW = [[1/2, 0], [-1/2, 0]]
    # Client 1: dW = [[0, 1], [0, -1]] (mean of 3 equal);      W1 = [[0, -1], [0, 1]]
    # Mean with weights 1 : 3 of 4 samples.
    expected = torch.tensor([[1 / 8, -3 / 4], [-1 / 8, 3 / 4]])
    assert torch.allclose(rounds(FedAvg(), 1)["1.weight"], expected)


def test_two_local_epochs_are_two_steps_before_the_mean():
    # Client 0 after one step: logits of x are (1/2, -1/2), p0 = sigmoid(1). Its second step adds (1 - p0)(1, -1) x^T.
    # Client 1 after one step: logits of x are (-2, 2), p1 = sigmoid(4). Its second step adds (1 - p1) 2 (-1, 1).
    first = 1 / 2 + 1 - torch.sigmoid(torch.tensor(1.0)).item()
    second = 1 + 2 * (1 - torch.sigmoid(torch.tensor(4.0)).item())
    expected = torch.tensor([[first / 4, -3 * second / 4], [-first / 4, 3 * second / 4]])
    assert torch.allclose(rounds(FedAvg(client_epochs=2), 1)["1.weight"], expected)


def test_the_proximal_term_pulls_towards_the_global_weights():
    # The first step from the anchor is FedAvg's. In the second, mu (w - w_global) joins the gradient.
    mu = 0.5
    first = 1 / 2 + (1 - torch.sigmoid(torch.tensor(1.0)).item()) - mu * 1 / 2
    second = 1 + 2 * (1 - torch.sigmoid(torch.tensor(4.0)).item()) - mu * 1
    expected = torch.tensor([[first / 4, -3 * second / 4], [-first / 4, 3 * second / 4]])
    assert torch.allclose(rounds(FedProx(client_epochs=2, mu=mu), 1)["1.weight"], expected)
    assert torch.equal(
        rounds(FedProx(client_epochs=2, mu=0.0), 2)["1.weight"], rounds(FedAvg(client_epochs=2), 2)["1.weight"]
    )


def test_batch_normalisation_buffers_are_averaged_on_purpose():
    weights = rounds(FedAvg(client_epochs=2), 1, model="worlds_by_hand:normed")
    # Client 0 has one feature value pair (1, 0): mean 1/2; client 1 has (0, 2): mean 1. Momentum 0.1, two steps each.
    means = [1 / 2 * (1 - 0.9**2), 1 * (1 - 0.9**2)]
    assert weights["0.running_mean"].item() == pytest.approx(means[0] / 4 + means[1] * 3 / 4)
    # Unbiased variances: 1/2 of two values; 6/5 of six. They start from 1.
    variances = [0.81 + 0.19 * 0.5, 0.81 + 0.19 * 1.2]
    assert weights["0.running_var"].item() == pytest.approx(variances[0] / 4 + variances[1] * 3 / 4)
    assert weights["0.num_batches_tracked"].item() == 2


def test_the_mean_is_that_of_the_aggregation():
    # Of W0, W1 and W1 the median is W1, number by number.
    w = dataclasses.replace(world(FedAvg(), [*CLIENTS, CLIENTS[1]]), aggregator=Median())
    assert torch.allclose(after(w, 1)["1.weight"], torch.tensor([[0.0, -1.0], [0.0, 1.0]]))


@dataclasses.dataclass(frozen=True)
class OneIsBroken(FedAvg):
    """Client 1 sends what cannot be averaged."""

    sent: str = "nan"

    @on_client
    def local_training(self, client: Client, request: GlobalModel) -> LocalModel:
        """FedAvg's, spoilt on client 1."""
        good = FedAvg.local_training(self, client, request)
        if client.id == 0:
            return good
        weight = good.weights["1.weight"]
        spoilt = {
            "nan": {"1.weight": torch.full_like(weight, float("nan"))},
            "another shape": {"1.weight": weight[:1]},
            "another name": {"2.weight": weight},
            "no samples": good.weights,
        }
        return LocalModel(spoilt[self.sent], {}, 0 if self.sent == "no samples" else good.samples, good.loss)


@pytest.mark.parametrize("sent", ["nan", "another shape", "another name", "no samples"])
def test_an_upload_that_cannot_be_averaged_is_left_out(sent):
    expected = torch.tensor([[1 / 2, 0.0], [-1 / 2, 0.0]])  # W0 of the first test
    assert torch.allclose(rounds(OneIsBroken(sent=sent), 1)["1.weight"], expected)


def test_clients_of_different_architectures_are_refused_before_training():
    mixed = dataclasses.replace(world(FedAvg(), CLIENTS), client_models=("mlp", "cnn"))
    with pytest.raises(
        ModelError, match=r"fedavg shares weights among clients, so all need one architecture.*cnn, mlp"
    ):
        FedAvg().check(mixed)
