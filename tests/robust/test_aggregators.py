"""What stands in for the mean where some clients may lie, with numbers worked by hand."""

import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, tensor

from catchment.config.experiment import Experiment
from catchment.errors import ExperimentError, ModelError
from catchment.learning.averaging import WeightedMean
from catchment.reading import read_table
from catchment.robust.aggregators import AGGREGATORS, Aggregator, Cronus, Krum, Mean, Median, TrimmedMean

ROBUST = [Cronus(), Krum(), Median(), TrimmedMean()]
FAR = 1e6
HERE = str(Path(__file__).parent)


def column(*values):
    """One number from each client."""
    return tensor(values).unsqueeze(1)


# ---- each rule --------------------------------------------------------------------------------------------------


def test_the_mean_by_weights():
    """(1 * [1, 2] + 3 * [5, -2]) / 4 = [4, -1]."""
    assert Mean()(tensor([[1.0, 2.0], [5.0, -2.0]]), tensor([1.0, 3.0])).tolist() == [4.0, -1.0]
    assert Mean()(tensor([[1.0, 2.0], [5.0, -2.0]])).tolist() == [3.0, 0.0]


def test_the_mean_with_weights_of_its_own_for_every_sample():
    """Sample 0 hears the first client only, sample 1 both: (2 + 3 * 6) / 4 = 5."""
    stacked, weights = tensor([[[1.0], [2.0]], [[9.0], [6.0]]]), tensor([[1.0, 1.0], [0.0, 3.0]])
    assert Mean()(stacked, weights, by_sample=True).tolist() == [[1.0], [5.0]]


def test_the_median_of_an_odd_and_of_an_even_count():
    assert Median()(tensor([[1.0, 9.0], [2.0, 8.0], [100.0, -7.0]])).tolist() == [2.0, 8.0]
    assert Median()(column(4.0, 1.0, 100.0, 2.0)).tolist() == [3.0]


def test_the_trimmed_mean_cuts_at_both_ends():
    """A fifth of 5 is one at each end: (2 + 3 + 4) / 3; a tenth of 5 is half a client, and cuts one too."""
    assert TrimmedMean(0.2)(column(1.0, 2.0, 3.0, 4.0, 50.0)).tolist() == [3.0]
    assert TrimmedMean(0.1)(column(1.0, 2.0, 3.0, 4.0, 50.0)).tolist() == [3.0]
    assert TrimmedMean(0.0)(column(1.0, 2.0, 3.0)).tolist() == [2.0]


def test_a_trimmed_mean_leaves_somebody():
    assert TrimmedMean(0.45)(column(1.0, 5.0)).tolist() == [3.0]


def test_krum_takes_the_client_that_is_nearest_to_its_neighbours():
    """5 clients, f = 1: two neighbours count. Scores 0: 1 + 9, 1: 1 + 4, 3: 4 + 9, 6: 9 + 25, 100: very many."""
    assert Krum(attackers=1)(column(0.0, 1.0, 3.0, 6.0, 100.0)).tolist() == [1.0]


def test_multi_krum_takes_the_mean_of_the_best():
    """Of the clients above: 1, 0 and 3."""
    assert Krum(attackers=1, keep=3)(column(0.0, 1.0, 3.0, 6.0, 100.0)).tolist() == pytest.approx([4 / 3])


def test_krum_takes_a_whole_vector_and_by_sample_one_for_each_row():
    """The numbers above in both rows, but from other clients."""
    stacked = torch.stack([column(0.0, 1.0, 3.0, 6.0, 100.0), column(6.0, 100.0, 1.0, 0.0, 3.0)], dim=1)
    assert Krum(attackers=1)(stacked, by_sample=True).tolist() == [[1.0], [1.0]]
    whole = Krum(attackers=1)(stacked)
    assert any(torch.equal(whole, client) for client in stacked)


def test_the_filter_of_cronus_by_hand():
    """-1, 0, 1, 0, 40: the median is 0, deviations 1, 0, 1, 0, 40 with median 1, so 1.4826^2 = 2.198 is usual.

    The mean is 8, the variance (81 + 64 + 49 + 64 + 1024) / 5 = 256.4, above 4 * 2.198: 40 goes. Of the four that stay
    the lower middle deviation is 0, so they spread too far for it: without a cap it would go on, the cap is one.
    """
    uploads = column(-1.0, 0.0, 1.0, 0.0, 40.0)
    assert Cronus(most=0.2).filter(uploads.unsqueeze(1)).squeeze(1).tolist() == [True, True, True, True, False]
    assert Cronus(most=0.2)(uploads).tolist() == [0.0]
    assert Cronus(most=0.0)(uploads).tolist() == [8.0]


def test_the_filter_of_cronus_stops_at_its_bound():
    """-3, -1, 1, 3 and 0: variance 20 / 5 = 4, deviations with median 1, 1.4826^2 = 2.198; the ratio is 1.82."""
    uploads = column(-3.0, -1.0, 1.0, 3.0, 0.0).unsqueeze(1)
    assert Cronus(bound=1.83).filter(uploads).all()
    assert not Cronus(bound=1.81).filter(uploads).all()


def test_the_filter_of_cronus_looks_along_one_direction_in_any_dimension():
    """A lie that is small in each of 200 numbers is large along their common direction; both sizes of matrix agree."""
    generator = torch.Generator().manual_seed(0)
    uploads = torch.randn(12, 200, generator=generator)
    uploads[7] += 2.0  # 2 * sqrt(200) = 28 deviations along (1, ..., 1)
    kept = Cronus().filter(uploads.unsqueeze(1)).squeeze(1)
    assert kept.tolist() == [client != 7 for client in range(12)]
    few = uploads[:, :9].unsqueeze(1) + 3 * (torch.arange(12) == 7).view(-1, 1, 1)
    padded = torch.cat([few, torch.zeros(12, 1, 9)], dim=2)
    assert torch.equal(Cronus().filter(few), Cronus().filter(padded))


def test_the_filter_of_cronus_drops_for_one_sample_and_keeps_for_the_next():
    generator = torch.Generator().manual_seed(0)
    uploads = torch.randn(10, 3, 4, generator=generator)
    uploads[2, 1] += 50
    kept = Cronus().filter(uploads)
    assert not kept[2, 1]
    assert kept[2, 0]
    assert kept[2, 2]


# ---- all of them ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregator", ROBUST, ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("by_sample", [False, True])
def test_one_liar_in_eight_moves_the_mean_and_hardly_anything_else(aggregator, by_sample):
    uploads = torch.randn(8, 6, 5, generator=torch.Generator().manual_seed(1))
    uploads[3] += FAR
    assert Mean()(uploads, by_sample=by_sample).abs().min() > FAR / 10
    assert aggregator(uploads, by_sample=by_sample).abs().max() < 4


@pytest.mark.parametrize("aggregator", ROBUST, ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("lie", [math.nan, math.inf, -math.inf, 3e38])
def test_what_is_not_a_number_is_left_out(aggregator, lie):
    uploads = torch.randn(8, 5, generator=torch.Generator().manual_seed(1))
    uploads[3, 2] = lie
    assert aggregator(uploads).abs().max() < 4


@pytest.mark.parametrize("aggregator", [Mean(), *ROBUST], ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("clients", [1, 2, 3])
def test_few_clients_that_agree(aggregator, clients):
    same = torch.arange(6.0).view(2, 3)
    for by_sample in (False, True):
        assert torch.equal(aggregator(same.expand(clients, 2, 3), by_sample=by_sample), same)


@pytest.mark.parametrize("aggregator", [Mean(), *ROBUST], ids=lambda a: type(a).__name__)
def test_no_samples_no_rows(aggregator):
    assert aggregator(torch.empty(3, 0, 10), by_sample=True).shape == (0, 10)


@pytest.mark.parametrize("aggregator", ROBUST, ids=lambda a: type(a).__name__)
def test_the_word_of_a_liar_about_its_weight_counts_nothing(aggregator):
    uploads = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    assert torch.equal(aggregator(uploads, tensor([1.0, 1, 1, 1, 1, FAR])), aggregator(uploads))


@pytest.mark.parametrize("aggregator", ROBUST, ids=lambda a: type(a).__name__)
def test_half_precision_stays_half_precision(aggregator):
    uploads = torch.randn(6, 5, generator=torch.Generator().manual_seed(1)).half()
    assert aggregator(uploads).dtype == torch.float16


def test_nothing_cannot_be_aggregated():
    with pytest.raises(ValueError, match=r"\[0, 3\] cannot be aggregated"):
        Median()(torch.empty(0, 3))
    with pytest.raises(ValueError, match="aggregate of nothing"):
        Median().running().value()


@pytest.mark.parametrize(
    ("rule", "table", "message"),
    [
        (TrimmedMean, {"trim": 0.5}, "trim is 0.5; a share from 0 to below one half"),
        (Cronus, {"most": -0.1}, "most is -0.1"),
        (Cronus, {"bound": 0.5}, "bound is 0.5; at least 1"),
        (Krum, {"attackers": -1}, "attackers is -1"),
        (Krum, {"keep": 0}, "keep is 0"),
    ],
)
def test_impossible_parameters(rule, table, message):
    with pytest.raises(ExperimentError, match=message):
        read_table(rule, table)


# ---- models, client by client -----------------------------------------------------------------------------------


def running(aggregator, *models):
    total = aggregator.running()
    for model in models:
        total.add(model, 1)
    return total.value()


def test_the_mean_of_models_is_the_running_one():
    assert isinstance(Mean().running(), WeightedMean)


def test_counts_take_the_largest_value_and_names_keep_their_order():
    models = [{"w": tensor([float(k), 0.0]), "steps": tensor(k), "b": tensor(10.0 * k)} for k in (1, 2, 90)]
    result = running(Median(), *models)
    assert list(result) == ["w", "steps", "b"]
    assert (result["w"].tolist(), result["steps"].item(), result["b"].item()) == ([2.0, 0.0], 90, 20.0)
    assert result["steps"].dtype == torch.int64


def test_krum_takes_all_tensors_of_one_model():
    """Alone, `a` would be that of the second client and `b` that of the third."""
    pairs = ((0.0, 6.0), (1.0, 100.0), (3.0, 1.0), (6.0, 0.0), (100.0, 3.0))
    models = [{"a": tensor([a]), "b": tensor([b])} for a, b in pairs]
    taken = running(Krum(attackers=1), *models)
    assert taken in models


def test_models_that_do_not_fit_are_refused():
    with pytest.raises(ModelError, match="other names or shapes than the first: w"):
        running(Median(), {"w": torch.zeros(2)}, {"w": torch.zeros(3)})


# ---- from a file ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Highest(Aggregator):
    """A user's own."""

    def robust(self, rows: Tensor) -> Tensor:
        """Whatever is largest."""
        return rows.amax(dim=0)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_a_file_names_an_aggregator_and_keeps_its_parameters(name):
    experiment = Experiment.from_dict({"aggregation": {"name": name}})
    assert experiment.build_aggregator() == AGGREGATORS[name]()
    assert Experiment.from_dict(experiment.to_dict()) == experiment


def test_parameters_and_own_aggregators():
    table = {"name": "trimmed_mean", "trim": 0.3}
    assert Experiment.from_dict({"aggregation": table}).build_aggregator() == TrimmedMean(0.3)
    own = Experiment.from_dict({"path": HERE, "aggregation": {"name": "test_aggregators:Highest"}})
    assert own.build_aggregator()(column(1.0, 3.0, 2.0)).tolist() == [3.0]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "medain"}, 'unknown aggregation "medain"; did you mean "median"?'),
        ({"name": "median", "trim": 0.1}, 'unknown key "aggregation.trim"'),
        ({"name": "krum", "keep": 0}, r"aggregation\.keep is 0"),
        ({"name": "test_aggregators:column"}, "must be a subclass of catchment.Aggregator"),
        ({"name": 3}, 'aggregation.name is 3; text in quotes is expected, such as "mean"'),
    ],
)
def test_mistakes_in_a_file(table, message):
    with pytest.raises(ExperimentError, match=message):
        Experiment.from_dict({"path": HERE, "aggregation": table})


def test_a_method_that_averages_nothing_refuses_another_aggregator():
    table = {"method": {"name": "standalone"}, "data": {"train": 100, "test": 50}, "aggregation": {"name": "median"}}
    with pytest.raises(ExperimentError, match=r'"median", but standalone does not average what clients send'):
        Experiment.from_dict(table).build_world()
