"""Programs on a virtual GPU end by themselves; here a tenth of the hundred that `make conformance`
runs, each forked from a process that has imported torch."""

import pytest

from ..forked import python
from .exit_programs import LIMIT_S, complaint, programs


def test_there_are_a_hundred_programs():
    assert len(programs()) == 100


@pytest.mark.parametrize("name", list(programs())[3::10])
def test_a_program_ends_with_its_own_exit_code(name):
    assert complaint(name, lambda path: python(path, timeout=LIMIT_S, whole=True)) is None


AT_THE_END = """
import torch
import anydevice as ad
ad.virtual.enable(1)
torch.cuda.memory._record_memory_history()


def numbers():
    x = torch.ones(5, device="cuda")
    try:
        yield x
    finally:  # runs when Python ends, with no frame below this one
        print((x + 1).sum().item(), flush=True)


held = numbers()
next(held)
"""


def test_a_finalizer_at_the_end_of_python_has_its_history_recorded():
    done = python("-c", AT_THE_END, whole=True)
    assert (done.returncode, done.stdout) == (0, "10.0\n")
    assert "Exception ignored" not in done.stderr
