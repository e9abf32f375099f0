"""A spread of PyTorch's own databases on a virtual GPU; `make conformance` runs all of them."""

import contextlib
import io
import json
from collections import Counter

import pytest

from tests.conformance import __main__ as conformance

# So few cases may come of the fast slice and no fewer: an empty run must not pass.
AT_LEAST = {
    "forward": 110, "backward": 30, "inplace": 10, "out": 20, "errors": 15, "module": 9,
    "optimizer": 3, "autocast": 15, "random": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def fast_slice(tmp_path_factory):
    """One worker, since to start another takes as long as half of the cases."""
    outcomes = tmp_path_factory.mktemp("conformance") / "outcomes.json"
    words = ["--fast", "--workers", "1", "--json", str(outcomes)]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as said:
        patch.setattr("sys.argv", ["conformance", *words])
        code = conformance.main()
    print(said.getvalue())
    return code, said.getvalue(), json.loads(outcomes.read_text())


def test_no_case_differs_from_the_cpu_but_those_announced(fast_slice):
    code, said, _ = fast_slice
    assert "\nDifferences:" not in said
    assert code == 0


def test_the_slice_compares_answers_from_every_database(fast_slice):
    _, _, outcomes = fast_slice
    compared = Counter(o["case"]["check"] for o in outcomes if o["computed"])
    assert {check: n for check, n in AT_LEAST.items() if compared[check] < n} == {}
