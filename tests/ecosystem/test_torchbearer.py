"""torchbearer 0.5.5, of 2020."""

import pytest

from tests.ecosystem.running import PROGRAMS, on_cpu, on_gpus, report

pytest.importorskip("torchbearer")


@pytest.mark.long
def test_a_trial_on_the_second_gpu_learns_what_it_learns_on_the_cpu() -> None:
    program = str(PROGRAMS / "torchbearer_trial.py")
    there, here = report(on_gpus(program, "cuda:1", gpus=2)), report(on_cpu(program, "cpu"))
    assert there.pop("devices") == there.pop("moments") == ["cuda:1"]
    assert here.pop("devices") == here.pop("moments") == ["cpu"]
    assert there == here
