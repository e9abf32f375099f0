"""accelerate: a program of ours, and the scripts that it ships to test an installation."""

from pathlib import Path

import pytest

from tests.ecosystem.running import PROGRAMS, both, on_gpus, report

accelerate = pytest.importorskip("accelerate")

SCRIPTS = Path(accelerate.__file__).parent / "test_utils" / "scripts"
LAUNCH = ("-m", "accelerate.commands.launch", "--num_processes", "2", "--multi_gpu")


def test_one_gpu_gives_the_losses_of_the_cpu() -> None:
    there, here = both("accelerate_train.py", "no", gpus=2)
    assert (there.pop("device"), here.pop("device")) == ("cuda", "cpu")
    assert there.pop("wholes") == here.pop("wholes") * 2
    assert there == here


@pytest.mark.parametrize(("precision", "dtype"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_mixed_precision_computes_in_half_and_learns_the_same(precision: str, dtype: str) -> None:
    program = str(PROGRAMS / "accelerate_train.py")
    mixed = report(on_gpus(program, "cuda", precision))
    whole = report(on_gpus(program, "cuda", "no"))
    assert f"torch.{dtype}" in mixed["dtypes"]
    assert mixed["losses"] != whole["losses"]
    assert mixed["losses"] == pytest.approx(whole["losses"], rel=1e-2)


def test_launched_on_two_gpus_it_learns_what_one_learns() -> None:
    program = str(PROGRAMS / "accelerate_train.py")
    alone = report(on_gpus(program, "cuda", "no"))
    together = report(on_gpus(*LAUNCH, program, "cuda", "no", gpus=2))
    assert together["processes"] == 2
    assert together["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert (together["seen"], together["right"]) == (64, alone["right"])


@pytest.mark.parametrize("script", ["test_cli", "test_ops", "test_sync", "test_script"])
def test_its_own_script_runs_on_one_gpu(script: str) -> None:
    on_gpus(str(SCRIPTS / f"{script}.py"))


@pytest.mark.parametrize(
    "script",
    [
        "test_cli",
        "test_ops",
        "test_sync",
        "test_script",
        "test_distributed_data_loop",
        "test_ddp_comm_hook",
    ],
)
def test_its_own_script_runs_on_two_gpus(script: str) -> None:
    on_gpus(*LAUNCH, str(SCRIPTS / f"{script}.py"), gpus=2)
