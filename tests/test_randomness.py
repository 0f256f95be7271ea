"""Every random number is derived from the seed and from what it is for, and from nothing else."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from catchment.randomness import chance, derive, numpy_generator, per_sample, seeded_globals, torch_generator

# ---- derive -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ((0, "cohort", 1), 8782569325640343474),
        ((42,), 3128091920851410675),
        ((7, "shuffle", 0, "training", 3, 2, 1), 7745637964330957348),
    ],
)
def test_derived_seeds_never_change(path, expected):
    """Results that were published depend on these numbers."""
    assert derive(*path) == expected


def test_every_purpose_has_its_own_seed():
    paths = [
        (seed, purpose, client, round)
        for seed in (0, 1)
        for purpose in ("cohort", "shuffle", "augment")
        for client in range(12)
        for round in range(12)
    ]
    assert len({derive(*path) for path in paths}) == len(paths)


def test_numbers_that_look_alike_side_by_side_are_kept_apart():
    assert derive(0, 1, 11) != derive(0, 11, 1)
    assert derive(0, "a", 1, 2) != derive(0, "a", 12)
    assert derive(1, "a") != derive(11, "a")


def test_a_seed_fits_every_generator():
    seeds = [derive(0, number) for number in range(1000)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62  # all 63 bits are used


def test_generators_follow_their_purpose_alone():
    def draw(*path):
        return torch.rand(3, generator=torch_generator(*path)).tolist(), numpy_generator(*path).random(3).tolist()

    torch.rand(5)
    first = draw(0, "a")
    torch.rand(5)
    assert draw(0, "a") == first
    for other in (draw(0, "b"), draw(1, "a")):
        assert other[0] != first[0]
        assert other[1] != first[1]


def test_chance_is_uniform():
    draws = torch.tensor([chance(0, "fault", number) for number in range(4000)])
    assert 0 <= draws.min() < draws.max() < 1
    assert torch.histc(draws, 10, 0, 1).sub(400).abs().max() < 100  # five standard deviations


# ---- numbers by sample ------------------------------------------------------------------------------------------


def test_a_samples_numbers_do_not_depend_on_the_batch():
    whole = per_sample(5, torch.arange(100), 3)
    assert whole.shape == (100, 3)
    for ids in (torch.tensor([7]), torch.tensor([99, 0, 7]), torch.randperm(100, generator=torch_generator(0))):
        assert torch.equal(per_sample(5, ids, 3), whole[ids])


def test_a_sample_twice_in_a_batch_gets_the_same_numbers_twice():
    twice = per_sample(5, torch.tensor([3, 3]), 2)
    assert torch.equal(twice[0], twice[1])


def test_numbers_by_sample_differ_by_seed_sample_and_draw():
    draws = torch.cat([per_sample(seed, torch.arange(200), 5) for seed in (1, 2, derive(0, "augment"))])
    assert len(draws.flatten().unique()) == draws.numel()


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1, derive(0, "augment")])
def test_numbers_by_sample_are_uniform_and_not_related(seed):
    draws = per_sample(seed, torch.arange(10_000), 2)
    assert draws.dtype == torch.float64
    assert 0 <= draws.min() < draws.max() < 1
    for column in draws.T:
        assert torch.histc(column, 20, 0, 1).sub(500).abs().max() < 110  # five standard deviations
    neighbours = torch.stack([draws[:-1, 0], draws[1:, 0], draws[:-1, 1]])
    assert torch.corrcoef(neighbours).sub(torch.eye(3)).abs().max() < 0.05


def test_no_samples_have_no_numbers():
    assert per_sample(0, torch.empty(0, dtype=torch.int64), 4).shape == (0, 4)


# ---- the global generator ---------------------------------------------------------------------------------------


def test_seeded_globals_fix_what_is_drawn_and_restore_what_was():
    before = torch.get_rng_state()
    with seeded_globals(3):
        first = torch.rand(4)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(9)
    with seeded_globals(3):
        assert torch.equal(torch.rand(4), first)
    with seeded_globals(4):
        assert not torch.equal(torch.rand(4), first)


def test_the_global_generator_is_restored_after_an_error():
    def draw_and_fail():
        with seeded_globals(3):
            torch.rand(4)
            raise ZeroDivisionError

    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError):
        draw_and_fail()
    assert torch.equal(torch.get_rng_state(), before)


def test_seeded_globals_can_be_nested():
    with seeded_globals(1):
        plain = torch.rand(2), torch.rand(2)
    with seeded_globals(1):
        first = torch.rand(2)
        with seeded_globals(2):
            torch.rand(2)
        assert torch.equal(first, plain[0])
        assert torch.equal(torch.rand(2), plain[1])


def test_threads_wait_for_each_other():
    def slow_draws():
        with seeded_globals(0):
            draws = []
            for _ in range(5):
                draws.append(float(torch.rand(1)))
                time.sleep(0.001)  # lets another thread in, if it may
            return draws

    alone = slow_draws()
    with ThreadPoolExecutor(4) as pool:
        together = [future.result() for future in [pool.submit(slow_draws) for _ in range(8)]]
    assert together == [alone] * 8
