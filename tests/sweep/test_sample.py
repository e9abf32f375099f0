import math

import pytest

import anydevice as ad
from anydevice import UsageError


def test_the_same_seed_draws_the_same_runs_and_more_of_them_begin_alike() -> None:
    spaces = {"lr": ad.log_uniform(1e-4, 1e-1), "layers": ad.integers(1, 4), "device": ["cpu"]}
    assert ad.sample(5, **spaces) == ad.sample(10, **spaces)[:5]
    assert ad.sample(5, **spaces) != ad.sample(5, random_seed=1, **spaces)


def test_draws_stay_in_their_bounds_and_log_uniform_is_even_over_powers() -> None:
    runs = ad.sample(
        400, lr=ad.log_uniform(1e-4, 1), drop=ad.uniform(0.1, 0.5), n=ad.integers(1, 3), p=["a"]
    )
    assert all(1e-4 <= run.lr <= 1 and 0.1 <= run.drop <= 0.5 for run in runs)
    assert {run.n for run in runs} == {1, 2, 3}
    powers = [
        sum(math.floor(math.log10(run.lr)) == power for run in runs) for power in range(-4, 0)
    ]
    assert min(powers) > 60  # 100 each, give or take


def test_runs_that_are_drawn_differ_and_when_leaves_some_out() -> None:
    runs = ad.sample(4, a=[1, 2], b=[1, 2])
    assert len({run.key for run in runs}) == 4
    assert all(run.a == 1 for run in ad.sample(2, a=[1, 2], b=[1, 2], when=lambda run: run.a == 1))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: ad.sample(0, a=[1]), "1 or more runs, got 0"),
        (lambda: ad.sample(3), "expected parameters"),
        (lambda: ad.sample(5, a=[1, 2], b=[3]), r"5 different runs, got 2 from a=\[1, 2\]"),
        (lambda: ad.log_uniform(0, 1), "two numbers above 0 for log_uniform"),
        (lambda: ad.uniform(2, 1), "the smaller first, got 2 and 1"),
        (lambda: ad.integers(0.5, 3), "whole numbers"),
        (lambda: ad.sample(1, a=0.5), "a list of values for a, got 0.5"),
    ],
)
def test_impossible_samples_are_told_in_a_sentence(make, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        make()
