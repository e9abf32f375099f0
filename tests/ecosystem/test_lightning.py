"""Lightning's Trainer on one GPU and on two, the second in a process that it starts itself."""

import pytest

from tests.ecosystem.running import PROGRAMS, both, on_cpu, on_gpus, reports

pytest.importorskip("lightning")


def test_one_gpu_gives_the_losses_of_the_cpu() -> None:
    there, here = both("lightning_fit.py", "32", "1", "auto")
    assert (there.pop("seen"), there.pop("root")) == (["torch.float32 cuda:0"], "cuda:0")
    assert (here.pop("seen"), here.pop("root")) == (["torch.float32 cpu"], "cpu")
    assert there == here


@pytest.mark.parametrize(
    ("precision", "dtype"), [("16-mixed", "float16"), ("bf16-mixed", "bfloat16")]
)
def test_mixed_precision_computes_in_half_and_learns_the_same(precision: str, dtype: str) -> None:
    program = str(PROGRAMS / "lightning_fit.py")
    (mixed,) = reports(on_gpus(program, "cuda", precision, "1", "auto"))
    (whole,) = reports(on_gpus(program, "cuda", "32", "1", "auto"))
    assert mixed["seen"] == [f"torch.{dtype} cuda:0"]
    assert mixed["losses"] != whole["losses"]
    assert mixed["losses"] == pytest.approx(whole["losses"], rel=1e-2)


@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_two_gpus_learn_together_what_two_processes_on_the_cpu_learn(strategy: str) -> None:
    program = str(PROGRAMS / "lightning_fit.py")
    there = reports(on_gpus(program, "cuda", "32", "2", strategy, gpus=2))
    here = reports(on_cpu(program, "cpu", "32", "2", strategy))
    assert sorted(rank.pop("root") for rank in there) == ["cuda:0", "cuda:1"]
    assert [rank.pop("root") for rank in here] == ["cpu", "cpu"]
    assert all(rank.pop("processes") == 2 and rank.pop("seen") for rank in there + here)
    assert sorted(there, key=str) == sorted(here, key=str)
