"""Triton's kernels where a process has one machine after another."""

import pytest
import torch

import anydevice as ad

pytest.importorskip("triton")


@pytest.mark.parametrize("hollow", [True, False], ids=["hollow", "computing"])
def test_a_kernel_is_compiled_for_the_card_that_there_is(hollow: bool) -> None:
    for kind, architecture in {"a100-80gb": 80, "h100": 90}.items():
        with ad.virtual_gpus(1, kind, hollow=hollow):
            from tests.virtual.compiled.kernels import add_kernel

            x = torch.zeros(8, device="cuda")
            kernel = add_kernel[(1,)](x, x, x, 8, BLOCK=8)
            assert kernel.metadata.target.arch == architecture
