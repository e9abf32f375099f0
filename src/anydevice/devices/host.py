"""The machine around the GPUs: its processor, cores and memory."""

import os
import platform
from dataclasses import dataclass

import torch

from anydevice import system

# Those that change which kernels PyTorch's CPU backends choose.
INSTRUCTION_SETS = {
    "avx": "AVX",
    "avx2": "AVX2",
    "avx512f": "AVX512",
    "avx512_vnni": "AVX512-VNNI",
    "avx512_bf16": "AVX512-BF16",
    "avx512_fp16": "AVX512-FP16",
    "amx_bf16": "AMX-BF16",
    "amx_int8": "AMX-INT8",
    "asimd": "NEON",
    "bf16": "BF16",
    "i8mm": "I8MM",
    "sve": "SVE",
}


@dataclass(frozen=True)
class Cpu:
    """The processor: cores are physical, `usable` the logical ones this process may run on."""

    device: str
    name: str
    cores: int
    usable: int
    threads: int
    instruction_sets: tuple[str, ...]
    memory: int | None
    free: int | None


def cpu() -> Cpu:
    """What is known of this machine's processor."""
    lines = system.kernel_lines("/proc/cpuinfo")
    fields = [(key.strip(), value.strip()) for key, _, value in (x.partition(":") for x in lines)]
    memory, free = _memory()
    return Cpu(
        device="cpu",
        name=_name(fields),
        cores=_physical_cores(fields) or os.cpu_count() or 1,
        usable=system.usable_cores(),
        threads=torch.get_num_threads(),
        instruction_sets=_instruction_sets(fields),
        memory=memory,
        free=free,
    )


def busy() -> float | None:
    """The busy share of the processors over the last minute; None where the system does not say."""
    try:
        return min(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    except (OSError, AttributeError):
        return None


def _name(fields: list[tuple[str, str]]) -> str:
    for key, value in fields:
        if key == "model name":
            return value
    return system.sysctl("machdep.cpu.brand_string") or platform.processor() or platform.machine()


def _physical_cores(fields: list[tuple[str, str]]) -> int:
    """Pairs of socket and core; zero where the kernel does not name them (Arm, macOS)."""
    sockets = [value for key, value in fields if key == "physical id"]
    cores = [value for key, value in fields if key == "core id"]
    return len(set(zip(sockets, cores, strict=False))) or int(system.sysctl("hw.physicalcpu") or 0)


def _instruction_sets(fields: list[tuple[str, str]]) -> tuple[str, ...]:
    for key, value in fields:
        if key in ("flags", "Features"):
            flags = set(value.split())
            return tuple(name for flag, name in INSTRUCTION_SETS.items() if flag in flags)
    return ()


def _memory() -> tuple[int | None, int | None]:
    """Total and available bytes; within a container, no more than it is allowed."""
    lines = system.kernel_lines("/proc/meminfo")
    sizes = {key: value.split() for key, _, value in (line.partition(":") for line in lines)}
    if "MemTotal" not in sizes:
        return system.memory(), None
    present, free = (int(sizes[key][0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    limit = "".join(system.kernel_lines("/sys/fs/cgroup/memory.max")).strip()
    used = "".join(system.kernel_lines("/sys/fs/cgroup/memory.current")).strip()
    if limit.isdecimal() and used.isdecimal():
        return min(present, int(limit)), min(free, int(limit) - int(used))
    return present, free
