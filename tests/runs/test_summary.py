"""The parts of a run's records."""

from __future__ import annotations

import pytest
from worlds import experiment

from catchment.core.method import Metrics, SameForAll
from catchment.runs import summary

WORLD = experiment("fedavg").build_world()


@pytest.mark.parametrize("count", [1, 3, 7, 100, 20_001])
@pytest.mark.parametrize("accuracy", [0.1, 0.97, 1 / 3, 1.0])
def test_one_model_of_many_clients_has_the_scores_of_a_list(count, accuracy):
    shared = SameForAll(range(count), accuracy)
    assert (dict(shared), len(shared), shared.get(count)) == (dict.fromkeys(range(count), accuracy), count, None)
    one, each = (summary.measured(Metrics(accuracy, clients=found), WORLD) for found in (shared, dict(shared)))
    assert one == each
