"""Ops of PyTorch's own database, compiled on a virtual GPU: they fail where the CPU's do alone."""

import pytest

from tests.virtual.own_process import run

COMPARED = """
from tests.virtual.compiled.operators import differences, sampled
virtual.enable()
print(json.dumps(dict(differences(sampled({})))))
"""
NO_COMPILER = """
import torch._inductor.config
torch._inductor.config.cpp.cxx = ("no-compiler",)
"""


def test_some_ops_compiled_give_what_they_give() -> None:
    """Without a C++ compiler: their graphs run op by op."""
    assert run(NO_COMPILER + COMPARED.format(2), ANYDEVICE_COMPILE="") == {}


@pytest.mark.long
def test_two_hundred_ops_compiled_give_what_they_give() -> None:
    assert run(COMPARED.format(200), ANYDEVICE_COMPILE="") == {}
