"""A spread of PyTorch's own databases on a virtual GPU; `make conformance` runs all of them."""

import json
import subprocess
import sys
from collections import Counter

import pytest

# So few cases may come of the fast slice and no fewer: an empty run must not pass.
AT_LEAST = {
    "forward": 110, "backward": 30, "inplace": 10, "out": 20, "errors": 15, "module": 9,
    "optimizer": 3, "autocast": 15,
}  # fmt: skip


@pytest.fixture(scope="module")
def fast_slice(tmp_path_factory):
    """Runs in processes of its own: this one must stay without a virtual GPU."""
    outcomes = tmp_path_factory.mktemp("conformance") / "outcomes.json"
    command = [sys.executable, "-m", "tests.conformance", "--fast", "--json", str(outcomes)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=400)
    print(run.stdout, run.stderr)
    return run, json.loads(outcomes.read_text())


def test_no_case_differs_from_the_cpu_but_those_announced(fast_slice):
    run, _ = fast_slice
    assert "\nDifferences:" not in run.stdout
    assert run.returncode == 0


def test_the_slice_compares_answers_from_every_database(fast_slice):
    _, outcomes = fast_slice
    compared = Counter(o["case"]["check"] for o in outcomes if o["computed"])
    assert {check: n for check, n in AT_LEAST.items() if compared[check] < n} == {}
