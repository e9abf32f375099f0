import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import anydevice as ad
from anydevice.devices.absence import Surroundings, diagnose, why_no_gpu

CUDA_BUILD = Surroundings(
    torch_version="2.11.0+cu130",
    accelerator="cuda",
    cuda="13.0",
    system="Linux",
    nvidia_card=True,
    in_container=False,
    driver=13010,
    driver_status=0,
    visible=None,
)
CPU_BUILD = replace(CUDA_BUILD, torch_version="2.13.0+cpu", accelerator=None, cuda=None)


@pytest.mark.parametrize(
    ("facts", "cause", "reason", "remedy"),
    [
        (CPU_BUILD, "CPU-only build", "2.13.0+cpu is a CPU-only build", "install a CUDA build"),
        (
            replace(CPU_BUILD, nvidia_card=False, driver=None),
            "CPU-only build",
            "CPU-only",
            "No NVIDIA GPU shows on this machine",
        ),
        (
            replace(CUDA_BUILD, driver=None, virtual=2, visible="5"),
            "hidden",
            "CUDA_VISIBLE_DEVICES is '5', which hides the virtual GPUs (numbers 0 to 1)",
            "name GPUs among these",
        ),
        (replace(CPU_BUILD, system="Darwin"), "CPU-only build", "CPU-only", "Apple silicon"),
        (
            replace(CUDA_BUILD, driver=None),
            "no driver",
            "no NVIDIA driver",
            "install a driver for CUDA 13.0",
        ),
        (
            replace(CUDA_BUILD, driver=None, in_container=True),
            "no driver",
            "no NVIDIA driver",
            "--gpus all",
        ),
        (
            replace(CUDA_BUILD, driver=None, nvidia_card=False),
            "no driver",
            "no NVIDIA driver",
            "No NVIDIA GPU shows",
        ),
        (
            replace(CUDA_BUILD, driver=12040),
            "driver too old",
            "supports CUDA 12.4, and PyTorch 2.11.0+cu130 needs CUDA 13",
            "Update the driver",
        ),
        (
            replace(CUDA_BUILD, visible="", driver_status=100),
            "hidden",
            "CUDA_VISIBLE_DEVICES is ''",
            "Unset",
        ),
        (
            replace(CUDA_BUILD, visible="7", driver_status=100),
            "hidden",
            "CUDA_VISIBLE_DEVICES is '7'",
            "nvidia-smi -L",
        ),
        (CUDA_BUILD, "unusable", "starts, yet PyTorch finds no GPU", "nvidia-smi"),
        (replace(CUDA_BUILD, driver_status=999), "unusable", "error 999", "nvidia-smi"),
        (
            replace(CUDA_BUILD, driver_status=999, visible="0"),
            "unusable",
            "error 999",
            "nvidia-smi",
        ),
        (replace(CUDA_BUILD, accelerator="mps", cuda=None), "unusable", "macOS", "macOS 14"),
        (replace(CUDA_BUILD, accelerator="xpu", cuda=None), "unusable", "xpu", "driver for xpu"),
    ],
)
def test_each_cause_is_told_apart_and_has_its_remedy(
    facts: Surroundings, cause: str, reason: str, remedy: str
) -> None:
    absence = diagnose(facts)
    assert absence.cause == cause
    assert reason in absence.reason
    assert remedy in absence.remedy
    assert not absence.reason.endswith(".")
    assert absence.remedy.endswith(".")


def test_the_reason_is_none_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    assert why_no_gpu() is None


@pytest.mark.skipif(torch.accelerator.device_count() > 0, reason="there is a GPU here")
def test_this_machine_has_a_reason() -> None:
    absence = why_no_gpu()
    assert absence
    if torch.version.cuda is None:
        assert absence.cause == "CPU-only build"


@pytest.mark.skipif(bool(torch.version.cuda), reason="a build for CUDA has the function")
def test_a_function_that_a_cpu_build_lacks_is_explained() -> None:
    with pytest.raises(AttributeError) as caught:
        torch.cuda.set_device(0)
    assert "is a CPU-only build" in ad.explain(caught.value)


DRIVER = """
int cuDriverGetVersion(int *version) { *version = VERSION; return VERSION ? 0 : 34; }
int cuInit(unsigned flags) { return STATUS; }
"""


@pytest.mark.skipif(sys.platform != "linux", reason="puts a libcuda.so.1 on the library path")
@pytest.mark.parametrize(
    ("version", "status"),
    [(12040, 0), *(pytest.param(*a, marks=pytest.mark.long) for a in ((13010, 100), (0, 0)))],
)
def test_a_drivers_own_answers_are_read(tmp_path: Path, version: int, status: int) -> None:
    """A library in the driver's place answers as an old driver, and as one without a GPU, does."""
    (tmp_path / "driver.c").write_text(DRIVER)
    answers = [f"-DVERSION={version}", f"-DSTATUS={status}"]
    build = ["g++", "-x", "c", "-shared", "-fPIC", *answers, "-o", "libcuda.so.1", "driver.c"]
    subprocess.run(build, cwd=tmp_path, check=True)
    asked = subprocess.run(
        [
            sys.executable,
            "-c",
            "from anydevice.devices import absence; print(absence._ask_driver())",
        ],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout.strip() == str((version or None, status))  # 0: a stub without a driver
