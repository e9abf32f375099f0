"""What is here: every device, the software around them, and why there is no GPU."""

import json
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from anydevice.devices import host
from anydevice.devices.absence import Absence, why_no_gpu
from anydevice.devices.choose import try_all_gpus
from anydevice.devices.load import driver_version, load_of
from anydevice.tables import Shown, Table
from anydevice.text import size_text
from anydevice.version import __version__

NARROW = 90  # columns: in fewer, a table would fold its last one to nothing


@dataclass(frozen=True)
class Gpu:
    """One GPU; memory in bytes, `busy` the share of the last moments it worked."""

    device: str
    name: str
    memory: int | None
    free: int | None
    busy: float | None
    capability: str | None
    multiprocessors: int | None
    driver: str | None
    runtime: str | None
    virtual: bool = False


@dataclass(frozen=True)
class Software:
    """The versions that decide what works."""

    anydevice: str
    torch: str
    cuda: str | None
    hip: str | None
    cudnn: str | None
    driver: str | None
    python: str
    os: str


@dataclass(frozen=True, repr=False)
class Devices(Shown):
    """The devices of this machine: what `ad.devices()` returns.

    It prints as a table in a terminal and a notebook.

    Attributes:
        gpus: Each GPU with its memory, load and capability.
        cpu: The processor: cores, threads, memory.
        software: The versions of PyTorch, CUDA, drivers and Python.
        why_no_gpu: Why there is no GPU and what to do about it; None if there is one.
    """

    gpus: tuple[Gpu, ...]
    cpu: host.Cpu
    software: Software
    why_no_gpu: Absence | None

    def to_json(self) -> str:
        """The same as JSON, for a program."""
        return json.dumps(asdict(self), indent=2)

    def issue_block(self) -> str:
        """Plain lines to paste into an issue."""
        lines = [f"{name}: {value}" for name, value in asdict(self.software).items() if value]
        for device, name, total, free, line in _table(self).rows:
            lines.append(f"{device}: {name}, {free} of {total} free, {line}")
        lines += [f"no GPU: {self.why_no_gpu.reason}"] if self.why_no_gpu else []
        return "\n".join(lines)

    def _shown(self) -> Iterator[Table | Text]:
        yield _table(self)
        if self.why_no_gpu:
            yield Text.assemble(("No GPU: ", "bold"), _why(self.why_no_gpu))
        yield Text(_versions(self.software), style="dim")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table, *lines = self._shown()
        if isinstance(table, Table) and options.max_width < NARROW:
            for device, name, memory, free, line in table.rows:
                figures = f"{name}, {memory}, {free} free, {line}"
                yield Text.assemble((device, "bold"), "  ", figures)
        else:
            yield table
        yield from lines


def devices() -> Devices:
    """What is here: every GPU and the CPU, the software around them, and why there is no GPU.

    >>> print(devices())  # doctest: +SKIP
    """
    software = _software()
    gpus = tuple(_gpu(device, software) for device in try_all_gpus())
    return Devices(gpus, host.cpu(), software, why_no_gpu())


def _gpu(device: torch.device, software: Software) -> Gpu:
    load = load_of(device)
    properties = getattr(torch.get_device_module(device), "get_device_properties", None)
    known: Any = properties(device) if properties else None
    capability = f"{known.major}.{known.minor}" if hasattr(known, "major") else None
    return Gpu(
        device=str(device),
        name=load.name,
        memory=load.total,
        free=load.free if load.total else None,
        busy=load.busy,
        capability=capability,
        multiprocessors=getattr(known, "multi_processor_count", None),
        driver=software.driver,
        runtime=software.cuda or software.hip,
        virtual=getattr(known, "virtual", False),
    )


def _software() -> Software:
    cudnn: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return Software(
        anydevice=__version__,
        torch=torch.__version__,
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        cudnn=f"{cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}" if cudnn else None,
        driver=driver_version(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        os=platform.platform(),
    )


def _table(found: Devices) -> Table:
    table = Table(("device", "name", "memory", "free", "what it is"), right=("memory", "free"))
    for gpu in found.gpus:
        table.rows.append(_row(gpu, _gpu_line(gpu)))
    table.rows.append(_row(found.cpu, _cpu_line(found.cpu)))
    return table


def _row(device: Gpu | host.Cpu, line: str) -> tuple[str, ...]:
    return device.device, device.name, size_text(device.memory), size_text(device.free), line


def _gpu_line(gpu: Gpu) -> str:
    parts = [
        gpu.virtual and "virtual: the CPU computes",
        gpu.capability and f"capability {gpu.capability}",
        gpu.multiprocessors and f"{gpu.multiprocessors} multiprocessors",
        gpu.busy is not None and f"{gpu.busy:.0%} busy",
    ]
    return ", ".join(part for part in parts if part)


def _cpu_line(cpu: host.Cpu) -> str:
    sets = " ".join(cpu.instruction_sets)
    return f"{cpu.cores} cores ({cpu.usable} usable), {cpu.threads} threads in PyTorch, {sets}"


def _why(absence: Absence) -> str:
    return f"{absence.reason}. {absence.remedy}"


def _versions(software: Software) -> str:
    names = {
        "torch": "PyTorch",
        "cuda": "CUDA",
        "hip": "HIP",
        "cudnn": "cuDNN",
        "python": "",
        "os": "",
    }
    known = asdict(software).items()
    return " · ".join(f"{names.get(name, name)} {value}".strip() for name, value in known if value)
