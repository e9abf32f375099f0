"""What NVML would say of the GPUs: there is no hardware, so it is idle, cold and draws no power."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from anydevice.notices import say_once
from anydevice.virtual import core

MIB = 1 << 20


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """The parts of pynvml that torch.cuda calls, and the one function that imports it anew."""
    idle = SimpleNamespace(gpu=0, memory=0)
    pynvml = SimpleNamespace(
        nvmlDeviceGetHandleByIndex=lambda device: device,
        nvmlDeviceGetMemoryInfo=lambda device: SimpleNamespace(used=_used(device)),
        nvmlDeviceGetUtilizationRates=lambda device: idle,
        nvmlDeviceGetTemperature=lambda device, sensor: 0,
        nvmlDeviceGetPowerUsage=lambda device: 0,
        nvmlDeviceGetClockInfo=lambda device, clock: 0,
    )

    def handle(device: Any = None) -> int:
        say_once(
            "Utilisation, temperature, power and clock of a virtual GPU are 0: it has no hardware."
        )
        return torch.cuda._utils._get_device_index(device, optional=True)

    def list_gpu_processes(device: Any = None) -> str:
        index = torch.cuda._utils._get_device_index(device, optional=True)
        used = _used(index) / MIB
        return f"GPU:{index}\nprocess {os.getpid():>10d} uses {used:>12.3f} MB GPU memory"

    yield torch.cuda, "pynvml", pynvml
    yield torch.cuda, "_HAS_PYNVML", True
    yield torch.cuda, "_get_pynvml_handler", handle
    yield torch.cuda.memory, "list_gpu_processes", list_gpu_processes
    yield torch.cuda, "list_gpu_processes", list_gpu_processes


def _used(device: int) -> int:
    core.refuse_absent(device)
    free, total = core.pair(core.library().anydevice_memory_info, device)
    return total - free
