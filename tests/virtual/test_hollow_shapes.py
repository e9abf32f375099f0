"""A hollow GPU's results have the sizes, strides and types that a virtual GPU's have."""

import json
from pathlib import Path

from ..forked import python

CASES = Path(__file__).with_name("hollow_cases.py")


def outcomes(*words: str) -> dict[str, object]:
    done = python(CASES, *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_sizes_strides_types_and_errors_are_those_of_a_gpu_with_values() -> None:
    expected, found = outcomes(), outcomes("hollow")
    # The CPU's words for a product of two types; the hollow GPU has CUDA's.
    expected["mm of two types"] = str(expected["mm of two types"]).replace(
        "m1 and m2", "mat1 and mat2"
    )
    different = {
        name: (found[name], expected[name]) for name in expected if found[name] != expected[name]
    }
    assert not different
    assert len(expected) > 200
