"""The devices as they work: memory, utilisation, temperature and processes, again every second."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console, Group, RenderableType
from rich.live import Live

from anydevice.devices import host
from anydevice.devices.choose import try_all_gpus
from anydevice.devices.load import load_of, nvml_handle
from anydevice.system import kernel_lines
from anydevice.tables import Table, plain_text, show_text
from anydevice.text import UNSET, size_text

BETWEEN = 1.0  # seconds


@dataclass(frozen=True)
class Process:
    """A process on a GPU."""

    device: str
    number: int
    name: str
    memory: int | None


@dataclass(frozen=True)
class Reading:
    """One GPU at one moment; None is what its driver does not say."""

    device: str
    name: str
    total: int | None
    used: int | None
    busy: float | None
    celsius: int | None
    watts: float | None
    processes: tuple[Process, ...]


def readings() -> list[Reading]:
    """Every GPU, as it is now.

    Example:
        >>> [each.device for each in readings()]
        []
    """
    return [_reading(device) for device in try_all_gpus()]


def _reading(device: torch.device) -> Reading:
    load = load_of(device)
    found = nvml_handle(device)
    celsius, watts, processes = _from_nvml(device, *found) if found else (None, None, ())
    used = load.total - load.free if load.total else None
    return Reading(str(device), load.name, load.total, used, load.busy, celsius, watts, processes)


def _from_nvml(
    device: torch.device, nvml: Any, handle: Any
) -> tuple[int | None, float | None, tuple[Process, ...]]:
    def asked(name: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, name)(handle, *arguments)
        except (nvml.NVMLError, AttributeError):  # a card that does not say
            return None

    milliwatts = asked("nvmlDeviceGetPowerUsage")
    running = asked("nvmlDeviceGetComputeRunningProcesses") or ()
    processes = tuple(
        Process(str(device), each.pid, process_name(each.pid), each.usedGpuMemory)
        for each in running
    )
    celsius = asked("nvmlDeviceGetTemperature", 0)
    return celsius, None if milliwatts is None else milliwatts / 1000, processes


def process_name(number: int) -> str:
    """What a process is called, where the kernel says."""
    lines = kernel_lines(f"/proc/{number}/comm")
    return lines[0].strip() if lines else UNSET


def picture(found: list[Reading]) -> list[Table]:
    """The GPUs and the CPU, and the processes on the GPUs."""
    columns = ("device", "name", "used", "memory", "busy", "temperature", "power")
    table = Table(columns, right=columns[2:])
    for gpu in found:
        figures = [size_text(gpu.used), size_text(gpu.total), *_texts(gpu)]
        table.rows.append([gpu.device, gpu.name, *figures])
    cpu = host.cpu()
    used = None if cpu.memory is None or cpu.free is None else cpu.memory - cpu.free
    busy = UNSET if (share := host.busy()) is None else f"{share:.0%}"
    figures = [size_text(used), size_text(cpu.memory), busy, UNSET, UNSET]
    table.rows.append([cpu.device, cpu.name, *figures])
    processes = [process for gpu in found for process in gpu.processes]
    if not processes:
        return [table]
    rows = [[p.device, str(p.number), p.name, size_text(p.memory)] for p in processes]
    return [table, Table(("device", "process", "name", "memory"), [*rows], right=("memory",))]


def _texts(gpu: Reading) -> list[str]:
    return [
        UNSET if gpu.busy is None else f"{gpu.busy:.0%}",
        UNSET if gpu.celsius is None else f"{gpu.celsius} °C",
        UNSET if gpu.watts is None else f"{gpu.watts:.0f} W",
    ]


def watch(console: Console | None = None) -> None:
    """Shows the devices until Ctrl+C; once, where the output is no terminal."""
    console = console or Console()
    if not console.is_terminal:
        for table in picture(readings()):
            show_text(plain_text(table, width=1000))
        return
    with Live(console=console, auto_refresh=False, screen=False) as live:
        for tables in _again():
            live.update(tables, refresh=True)


def _again() -> Iterator[RenderableType]:
    while True:
        yield Group(*picture(readings()))
        time.sleep(BETWEEN)
