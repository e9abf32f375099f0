"""More packages that people use, each in a short program."""

import pytest

from tests.ecosystem.running import PROGRAMS, both

NEEDS = {
    "botorch_optimize": "botorch",
    "diffusers_unet": "diffusers",
    "geometric_graphs": "torch_geometric",
    "gpytorch_regression": "gpytorch",
    "kornia_images": "kornia",
    "metric_learning": "pytorch_metric_learning",
    "monai_segmentation": "monai",
    "peft_lora": "peft",
    "pyro_inference": "pyro",
    "skorch_classifier": "skorch",
    "stable_baselines": "stable_baselines3",
    "tensordict_modules": "tensordict",
}


def test_no_program_is_left_out() -> None:
    assert set(NEEDS) == {program.stem for program in (PROGRAMS / "more").glob("*.py")}


@pytest.mark.parametrize("program", NEEDS)
def test_a_program_finds_on_cuda_what_it_finds_on_the_cpu(program: str) -> None:
    pytest.importorskip(NEEDS[program])
    there, here = both(f"more/{program}.py")
    assert (there["device"], here["device"]) == ("cuda", "cpu")
    assert there["numbers"] == pytest.approx(here["numbers"], rel=1e-5, abs=1e-6)
