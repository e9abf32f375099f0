"""A slice of the stress test; `make stress` runs the whole."""

import pytest

from .stress import complaint


@pytest.mark.parametrize(
    "seed", [1000, *(pytest.param(s, marks=pytest.mark.long) for s in (1001, 1002))]
)
def test_a_round_of_enabling_disabling_threads_and_forks(seed: int) -> None:
    assert complaint(seed) is None
