"""The verdict about what a virtual GPU costs: noise alone must not turn it red."""

import runpy
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "virtual_overhead.py"


@pytest.fixture(scope="module")
def figure():
    return runpy.run_path(str(PROGRAM))["Figure"]


def test_a_median_over_the_limit_passes_while_the_lower_quartile_is_under_it(figure):
    noisy = figure.of("a step", [1.04, 1.06, 1.06, 1.06, 1.02], 1.05, "×")
    assert (noisy.low, noisy.measured, noisy.high) == (1.04, 1.06, 1.06)
    assert noisy.verdict == "pass"


def test_a_lower_quartile_over_the_limit_fails(figure):
    assert figure.of("a step", [1.03, 1.06, 1.06, 1.06, 1.07], 1.05, "×").verdict == "FAIL"


def test_a_figure_without_a_limit_has_no_verdict(figure):
    assert figure.of("a step", [1.0, 2.0], None, "×").verdict == ""
