"""pytorch-ignite's engines, metrics and handlers."""

import pytest

from tests.ecosystem.running import PROGRAMS, both, on_gpus, report

pytest.importorskip("ignite")


def test_an_engine_on_cuda_learns_what_it_learns_on_the_cpu() -> None:
    there, here = both("ignite_train.py")
    assert (there.pop("parameters"), there.pop("idist")) == ("cuda:0", ["cuda", None])
    assert (here.pop("parameters"), here.pop("idist")) == ("cpu", ["cpu", None])
    assert there == here


def test_mixed_precision_computes_in_half_and_learns_the_same() -> None:
    program = str(PROGRAMS / "ignite_train.py")
    mixed = report(on_gpus(program, "cuda", "amp"))
    whole = report(on_gpus(program, "cuda"))
    assert mixed["dtypes"] == ["torch.float16", "torch.float32"]
    assert mixed["losses"] != whole["losses"]
    assert mixed["losses"] == pytest.approx(whole["losses"], rel=1e-2)
