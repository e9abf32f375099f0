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
