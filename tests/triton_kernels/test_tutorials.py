"""Triton's ten tutorials on virtual GPUs: with values, and planned."""

import json
from pathlib import Path

import pytest

from tests.forked import python

pytest.importorskip("triton")
pytestmark = pytest.mark.long
HERE = Path(__file__).parent / "tutorials"
NAMES = sorted(each.stem for each in HERE.glob("[!_]*.py"))
CARD = {"block_scaled_matmul": "b200"}


@pytest.mark.parametrize("name", NAMES)
def test_a_tutorial_has_the_numbers_of_pytorch(name: str) -> None:
    card = CARD.get(name, "h100")
    done = python("-m", "anydevice", "run", "--gpu", card, str(HERE / f"{name}.py"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_a_tutorial_is_planned_with_its_kernels(name: str) -> None:
    card = CARD.get(name, "h100")
    done = python("-m", "anydevice", "plan", "--json", "--gpu", card, str(HERE / f"{name}.py"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
