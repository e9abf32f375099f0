"""The devices as they work, and the guide to a GPU."""

import io
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from anydevice import virtual_gpus
from anydevice.devices import watching
from anydevice.devices.absence import Surroundings
from anydevice.devices.setup import guide
from anydevice.devices.watching import picture, readings, watch

LINUX = Surroundings("2.13.0+cpu", None, None, "Linux", False, False, None, 0, None)


class Error(Exception):
    pass


def refused(handle):
    raise Error


def test_a_gpu_has_memory_load_heat_and_processes(monkeypatch):
    nvml = SimpleNamespace(
        NVMLError=Error,
        nvmlDeviceGetPowerUsage=refused,  # some cards do not say
        nvmlDeviceGetTemperature=lambda handle, sensor: 71,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [
            SimpleNamespace(pid=1, usedGpuMemory=3 * 2**30)
        ],
    )
    monkeypatch.setattr(watching, "nvml_handle", lambda device: (nvml, "handle"))
    with virtual_gpus(1, "t4"):
        held = torch.zeros(2**28, device="cuda")
        gpu, *_ = readings()
        tables = picture([gpu])
        del held
    assert (gpu.celsius, gpu.watts) == (71, None)
    assert gpu.used >= 2**30
    first = dict(zip(tables[0].columns, tables[0].rows[0], strict=True))
    assert first["temperature"] == "71 °C"
    assert first["power"] == "–"
    assert tables[1].rows[0][3] == "3.0 GiB"


def test_what_is_no_terminal_gets_it_once(capsys):
    watch(Console(file=io.StringIO()))
    assert "cpu" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("facts", "gpus", "said"),
    [
        ({}, 0, ["No NVIDIA GPU shows", "It is not installed", "for the CPU alone"]),
        ({"nvidia_card": True, "driver": 12040}, 0, ["for CUDA 12.4", "one for CUDA 12 or older"]),
        (
            {"cuda": "13.0", "accelerator": "cuda", "driver": 12040},
            0,
            ["this PyTorch needs CUDA 13"],
        ),
        ({"in_container": True}, 0, ["docker run --gpus all"]),
        ({"system": "Darwin"}, 0, ["device mps"]),
        (
            {"nvidia_card": True, "driver": 13000, "cuda": "13.0", "accelerator": "cuda"},
            2,
            ["PyTorch sees 2"],
        ),
    ],
)
def test_the_guide_fits_the_machine(facts, gpus, said):
    found = str(guide(Surroundings(**{**vars(LINUX), **facts}), gpus))
    for sentence in said:
        assert sentence in " ".join(found.split())
    assert ("to do" in found) == (gpus == 0)
