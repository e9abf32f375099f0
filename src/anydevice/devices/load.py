"""How much room a GPU has left: its memory, and how busy it is."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch


@dataclass(frozen=True)
class Load:
    """Memory in bytes and the busy share of the last moments; None is what cannot be known."""

    name: str
    total: int | None = None
    free: int = 0
    busy: float | None = None

    @property
    def room(self) -> float:
        """Free memory, counted down by how busy the GPU is."""
        return self.free * (1 - (self.busy or 0.0))


def load_of(device: torch.device) -> Load:
    """The load of a GPU, read from NVML where that is at hand."""
    name = name_of(device)
    if device.type == "cuda":
        reading = _nvml_reading(device)
        if reading:
            free, busy = reading
            total = int(torch.cuda.get_device_properties(device).total_memory)
            return Load(name, total, min(free, total), busy)
    try:
        free, total = torch.accelerator.get_memory_info(device)
    except (RuntimeError, NotImplementedError):  # MPS and some others do not say
        return Load(name)
    if device.type == "cuda":  # a hollow GPU that is planned with has ample memory beyond its own
        total = min(total, int(torch.cuda.get_device_properties(device).total_memory))
    return Load(name, total, min(free, total))


def name_of(device: torch.device) -> str:
    """The GPU's name as its driver gives it, or else its type."""
    try:
        return str(torch.get_device_module(device).get_device_name(device))
    except AttributeError:
        return "Apple GPU" if device.type == "mps" else device.type


def driver_version() -> str | None:
    """The NVIDIA driver's version, such as "580.95.05"."""
    nvml = _nvml()
    return str(nvml.nvmlSystemGetDriverVersion()) if nvml else None


def _nvml_reading(device: torch.device) -> tuple[int, float | None] | None:
    """Free bytes and the busy share, without making a CUDA context on the GPU."""
    found = nvml_handle(device)
    if found is None:
        return None
    nvml, handle = found
    try:
        free = int(nvml.nvmlDeviceGetMemoryInfo(handle).free)
    except nvml.NVMLError:
        return None
    try:
        busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    except nvml.NVMLError:
        busy = None
    return free, busy


def nvml_handle(device: torch.device) -> tuple[Any, Any] | None:
    """NVML and its handle of a GPU; None of one that it does not know."""
    nvml = _nvml()
    if nvml is None or device.type != "cuda":
        return None
    # By UUID: NVML's indices know nothing of CUDA_VISIBLE_DEVICES or CUDA_DEVICE_ORDER.
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    try:
        return nvml, nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError:  # a virtual GPU, or a slice of one (MIG)
        return None


@cache
def _nvml() -> Any:
    """NVIDIA's management library, if both it and its Python face (nvidia-ml-py) are here."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except (ImportError, AttributeError):
        return None
    except pynvml.NVMLError:
        return None
    return pynvml
