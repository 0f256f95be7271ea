"""Trials of methods on a part of the data: what goes on, what stops, and what is advised."""

import dataclasses
import json

import pytest

from catchment import Experiment, run
from catchment.errors import ExperimentError
from catchment.planning.advice import with_method
from catchment.studies import candidates
from catchment.studies.candidates import Candidate, Facts, Size, find_facts, part_of, sizes
from catchment.studies.trials import Trials, _TimeIsOver, noise

TABLE = {
    "rounds": 4,
    "workers": 1,
    "data": {"clients": 2, "train": 300, "test": 60},
    "models": {"client": "mlp"},
}


def facts(*methods, **more):
    found = [one if isinstance(one, Candidate) else Candidate(method=one, work=1, up=10, down=10) for one in methods]
    return Facts(**{"candidates": found, "train": 300, "test": 60, "start": 0.0, "pace": 0.0, **more})


def trials(tmp_path, *methods, seconds=1000.0, **more):
    return Trials(Experiment.from_dict(TABLE), facts(*methods, **more), seconds, tmp_path)


def by_hand(monkeypatch, curves, over=()):
    """Trials that reach what a table says, by method and rate times 1000 (and seed 1): after 1, 2 and 4 rounds."""
    reached = {}

    def reach(self, trial, seed, before, rung):
        if (str(trial), rung) in over:
            raise _TimeIsOver
        reached[trial, seed] = rung

    def curve(self, trial, seed, until):
        values = curves.get((trial.method, trial.rate * 1000, seed)) or curves.get((trial.method, trial.rate * 1000))
        until = min(until, reached.get((trial, seed), 0))
        return {rung: value for rung, value in zip((1, 2, 4), values or (0.1, 0.1, 0.1)) if rung <= until}

    monkeypatch.setattr(Trials, "_reach", reach)
    monkeypatch.setattr(Trials, "_curve", curve)
    return reached


def test_what_is_farther_from_its_least_is_halved():
    experiment = Experiment.from_dict({**TABLE, "rounds": 20, "data": {"clients": 10}})
    assert sizes(experiment, 4000) == [
        Size(3200, 800, 20, 1),
        Size(1600, 400, 20, 1 / 2),
        Size(1600, 400, 10, 1 / 2),
        Size(800, 200, 10, 1 / 4),
        Size(800, 200, 5, 1 / 4),
        Size(500, 200, 5, 5 / 32),
        Size(500, 200, 4, 5 / 32),
    ]
    assert Size(1, 1, 10, 1).rungs == (3, 5, 10)
    assert Size(1, 1, 1, 1).rungs == (1,)


def test_trials_are_as_large_as_the_time_allows(tmp_path):
    def made(seconds):  # the experiment takes a second, and trials of its size three times 0.8
        known = facts(Candidate(method="fedavg", work=1000), train=3000, pace=1e-3)
        return Trials(Experiment.from_dict({**TABLE, "rounds": 20}), known, seconds, tmp_path)

    assert made(2.5).size == Size(2400, 600, 20, 1)
    assert made(2.3).size == Size(1200, 300, 20, 1 / 2)
    assert made(0.11).size == Size(300, 200, 5, 1 / 8)
    why = r"100 ms is too short: even the smallest trial would take about 13.3 ms; give --try 1m"
    with pytest.raises(ExperimentError, match=why):
        made(0.1)


def test_a_method_that_would_take_most_of_the_time_is_not_tried(tmp_path):
    made = trials(tmp_path, "fedavg", Candidate(method="fedzkt", work=10**6), pace=1e-3)
    assert {trial.method for trial in made.trials} == {"fedavg"}
    assert "give --try" in made.not_tried["fedzkt"]


def test_the_better_third_goes_on_and_the_best_three_methods_are_run_with_two_seeds(tmp_path, monkeypatch):
    curves = {
        ("dgc", 1.0): (0.5, 0.6, 0.7), ("dgc", 3.0): (0.4, 0.65, 0.8), ("dgc", 0.333): (0.3, 0.3, 0.3),
        ("fedavg", 1.0): (0.45, 0.5, 0.9), ("fedprox", 3.0): (0.3, 0.4, 0.4), ("fedcom", 1.0): (0.2, 0.3, 0.99),
        ("fedavg", 1.0, 1): (0.1, 0.1, 0.5),
    }  # fmt: skip
    reached = by_hand(monkeypatch, curves)
    found = trials(tmp_path, "fedavg", "fedprox", "dgc", "fedcom", "standalone").run()
    assert {(str(trial), seed): rung for (trial, seed), rung in reached.items() if rung > 1} == {
        ("dgc, lr 0.001", 0): 2,
        ("dgc, lr 0.003", 0): 4,
        ("dgc, lr 0.003", 1): 4,
        ("fedavg, lr 0.001", 0): 4,
        ("fedavg, lr 0.001", 1): 4,
        ("fedprox, lr 0.003", 0): 4,
        ("fedprox, lr 0.003", 1): 4,
        ("standalone, lr 0.001", 0): 4,
        ("standalone, lr 0.001", 1): 4,
    }
    assert str(found.chosen.trial) == "dgc, lr 0.003"  # 80 and 80 %, not 90 and 50
    assert found.chosen.accuracy == (0.8, 0.0, 2)
    assert found.finished
    why = {str(one.trial): one.why for one in found.standings}
    assert (why["dgc, lr 0.003"], why["fedcom, lr 0.001"]) == ("", "others were ahead")


def test_what_a_constant_answer_reaches_is_the_share_of_the_most_frequent_class(tmp_path, monkeypatch):
    by_hand(monkeypatch, {("fedavg", 1.0): (0.5, 0.6, 0.7)})
    made = trials(tmp_path, "fedavg")
    shares = []
    for seed in (0, 1):
        labels = made.experiment_of(made.trials[0], seed).divide().validation.targets.tolist()
        shares.append(max(map(labels.count, labels)) / len(labels))
    assert made.run().constant == sum(shares) / 2


def test_what_falls_stops_and_is_not_chosen(tmp_path, monkeypatch):
    by_hand(monkeypatch, {("fedgkt", 1.0): (0.9, 0.6, 0.6), ("fedavg", 1.0): (0.5, 0.49, 0.55)})
    found = trials(tmp_path, "fedgkt", "fedavg").run()
    assert str(found.chosen.trial) == "fedavg, lr 0.001"  # one point less is noise
    (fallen,) = (one for one in found.standings if one.why.startswith("it falls"))
    assert (str(fallen.trial), fallen.rounds) == ("fedgkt, lr 0.001", 2)
    assert fallen.why == "it falls, from 90.0 % after 1 rounds to 60.0 % after 2"
    assert noise(1.0, 100) > 0  # of 100 samples one may be wrong by chance


def test_when_time_is_over_the_last_whole_rung_counts(tmp_path, monkeypatch):
    curves = {("fedavg", 1.0): (0.5, 0.9, 0.9), ("fedprox", 1.0): (0.6, 0.7, 0.7)}
    by_hand(monkeypatch, curves, over=[("fedprox, lr 0.001", 2)])
    found = trials(tmp_path, "fedavg", "fedprox").run()
    assert not found.finished
    assert str(found.chosen.trial) == "fedprox, lr 0.001"
    assert {one.why for one in found.standings} == {"time was over", "others were ahead"}


def test_baselines_are_compared_and_not_chosen(tmp_path, monkeypatch):
    by_hand(monkeypatch, {("standalone", 1.0): (0.9, 0.9, 0.9), ("fedavg", 1.0): (0.5, 0.6, 0.7)})
    found = trials(tmp_path, "standalone", "fedavg").run()
    assert (found.chosen.trial.method, found.standings[0].trial.method) == ("fedavg", "standalone")
    assert found.none_ahead() == ["Devices that learn alone (standalone) reach 90.0 %: no method is ahead of that."]
    with pytest.raises(ExperimentError, match="no method can be tried; fedmd: it needs"):
        trials(tmp_path, "standalone", Candidate(method="fedmd", why_not="it needs public samples"))


def test_where_no_method_fits_the_reasons_are_said(tmp_path):
    """Nothing is measured then, not even how large the data are."""
    none = [Candidate(method="fedavg", why_not="it is too large"), Candidate(method="fedmd", why_not="so is it")]
    with pytest.raises(ExperimentError, match="no method can be tried; fedavg: it is too large; fedmd: so is it"):
        trials(tmp_path, *none, train=0, test=0)


def test_what_is_as_good_with_half_of_the_bytes_is_named(tmp_path, monkeypatch):
    by_hand(
        monkeypatch, {("fedavg", 1.0): (0.5, 0.6, 0.8), ("fedcams", 1.0): (0.5, 0.6, 0.78), ("dgc", 1.0): (0.6,) * 3}
    )
    small, tiny = Candidate(method="fedcams", up=2, down=8), Candidate(method="dgc", up=1, down=1)
    found = trials(tmp_path, "fedavg", small, tiny).run()
    assert (found.chosen.trial.method, found.frugal().trial.method) == ("fedavg", "fedcams")


def test_what_was_stopped_goes_on_and_comes_to_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("catchment.studies.trials.RATES", (1.0, 3.0))

    def go(place, rounds=10**9):
        clock = iter(range(10**9))
        made = trials(tmp_path / place, "fedavg", seconds=rounds)
        return made.run(clock=lambda: next(clock)), made

    whole, made = go("whole")
    assert whole.finished
    assert len(whole.standings) == 2
    assert whole.chosen.accuracy.runs == 2
    parts = []
    while not parts or not parts[-1].finished:  # each call has time for a few rounds
        assert len(parts) < 20
        parts.append(go("parts", 4)[0])
    assert len(parts) > 3
    assert parts[-1] == whole
    written = [sorted(p.name for p in (tmp_path / place / "runs").iterdir()) for place in ("whole", "parts")]
    assert written[0] == written[1]
    curve = made._curve(whole.chosen.trial, 0, 4)
    alone = part_of(made.experiment, whole.chosen.trial.method, whole.chosen.trial.rate, made.size, 60)
    seen = []
    run(alone, observe=lambda record: seen.append(record["validation"]))
    assert [seen[0], seen[1], seen[3]] == list(curve.values())  # a pause changes nothing


def test_a_method_that_fails_is_left_behind_with_its_reason(tmp_path, monkeypatch):
    monkeypatch.setattr("catchment.studies.trials.RATES", (1.0,))
    found = trials(tmp_path, "fedmd", "fedavg").run()  # there are no public samples
    assert found.chosen.trial.method == "fedavg"
    (failed,) = (one for one in found.standings if one.trial.method == "fedmd")
    assert failed.why.startswith("it failed: fedmd exchanges predictions of public samples")


def test_facts_are_found_once(tmp_path, monkeypatch):
    monkeypatch.setattr("catchment.planning.advice.METHODS", ("fedavg", "fedmd"))
    experiment = Experiment.from_dict(TABLE)
    found = find_facts(experiment, tmp_path)
    assert (found.train, found.test, found.pace > 0) == (300, 60, True)
    fitting, other = found.candidates
    assert (fitting.method, fitting.leaves) == ("fedavg", ["weights", "counts", "metrics"])
    assert "data.public" in other.why_not
    monkeypatch.setattr(candidates, "advise", None)
    assert find_facts(experiment, tmp_path) == found


def test_a_part_of_the_experiment_is_the_experiment_but_for_its_size():
    table = {**TABLE, "method": {"name": "fedprox", "mu": 0.5}, "evaluation": {"headline": "auroc"}}
    experiment = Experiment.from_dict(table)
    part = part_of(experiment, "fedprox", 0.003, Size(160, 40, 2, 2 / 3), 60)
    assert (part.method["mu"], part.optimizer.client.lr, part.rounds) == (0.5, 0.003, 2)
    division = part.divide()
    assert (len(division.private), len(division.validation)) == (160, 40)
    assert part.evaluation.headline == "auroc"


def test_partitions_shrink_with_the_data():
    def dealt(partition, size):
        experiment = Experiment.from_dict({**TABLE, "data": {**TABLE["data"], "partition": partition}})
        return part_of(experiment, "fedavg", 0.001, size, 60).divide().clients.sizes.tolist()

    counts = {"name": "table", "counts": [[18] * 10, [6] * 10]}  # 240 samples, as the trial of full size has
    assert dealt(counts, Size(120, 30, 4, 1 / 2)) != [180, 60]
    assert sum(dealt(counts, Size(120, 30, 4, 1 / 2))) <= 120
    most = {"name": "dirichlet", "alpha": 0.5, "minimum": 100}  # of 240 samples
    assert min(dealt(most, Size(60, 60, 4, 1 / 4))) >= 25


def test_the_default_of_one_method_is_not_taken_over_by_another():
    experiment = Experiment.from_dict({**TABLE, "method": {"name": "standalone"}})
    assert experiment.evaluation.average == 0.99
    assert with_method(experiment, "fedavg").build_world().average == 0.0
    chosen = dataclasses.replace(experiment.evaluation, average=0.5)
    assert with_method(dataclasses.replace(experiment, evaluation=chosen), "fedavg").build_world().average == 0.5


def test_an_outcome_is_json(tmp_path, monkeypatch):
    by_hand(monkeypatch, {})
    found = json.loads(json.dumps(trials(tmp_path, "fedavg").run().as_json()))
    assert (found["samples"], found["rounds"], found["chosen"]["method"]) == (240, 4, "fedavg")
    assert found["trials"][0]["lr"] == 0.001
