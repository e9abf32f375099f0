"""What is killed at any instant, or before any write, ends with the same bits when run again."""

import os
from pathlib import Path

import pytest

from .forked import ONE_THREAD, python


@pytest.mark.parametrize(
    "kind",
    [
        "tensors",
        "workers",
        "amp",
        "sweep",
        *(pytest.param(kind, marks=pytest.mark.long) for kind in ("persistent", "ddp", "fsdp")),
    ],
)
def test_killed_at_a_write_and_at_an_instant_it_ends_with_the_same_bits(kind: str) -> None:
    words = ("-m", "tests.kills", "--only", kind, "--kills", "2", "--seed", "1")
    done = python(*words, cwd=Path(__file__).parents[1], env=os.environ | ONE_THREAD)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("kills, all ends equal to the bit\n")
