"""Triton's driver for a card that is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from struct import unpack_from
from typing import Any

import torch

from anydevice.virtual.compiled.names import triton_names

WARP = 32
REGISTERS, MOST_THREADS = 65536, 1024
MOST_PROGRAMS = 2**31 - 1, 65535, 65535  # of a grid
REGISTER_COUNT, WITH_LENGTH = 0x2F, 4  # EIATTR_REGCOUNT, EIFMT_SVAL


class Utils:
    """What Triton asks of CUDA's driver."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        """What the card is."""
        properties: Any = torch.cuda.get_device_properties(device)
        return {
            "max_shared_mem": properties.shared_memory_per_block_optin,
            "max_num_regs": REGISTERS,
            "multiprocessor_count": properties.multi_processor_count,
            "warpSize": WARP,
            "sm_clock_rate": properties.clock_rate,
            "mem_clock_rate": properties.memory_clock_rate,
            "mem_bus_width": properties.memory_bus_width,
        }

    def load_binary(
        self, name: str, binary: bytes, shared: int, device: int
    ) -> tuple[int, int, int, int, int]:
        """A handle for the module and the function; registers, spills and threads at most."""
        return 1, 1, registers_of(binary), 0, MOST_THREADS

    def set_printf_fifo_size(self, size: int) -> None:
        """There is no buffer to size."""


def registers_of(binary: bytes) -> int:
    """The registers of a thread, which the binary's section .nv.info names."""
    for name, begin, size in _sections(binary):
        if name == ".nv.info":
            return _registers_in(binary[begin : begin + size])
    return 0


def _sections(binary: bytes) -> Iterator[tuple[str, int, int]]:
    """Name, place and size of each section of an ELF file of 64 bits."""
    (table,) = unpack_from("<Q", binary, 40)
    size, count, named = unpack_from("<HHH", binary, 58)
    heads = [unpack_from("<IIQQQQ", binary, table + i * size) for i in range(count)]
    texts = heads[named][4]
    for name, *_, begin, length in heads:
        end = binary.index(b"\0", texts + name)
        yield binary[texts + name : end].decode(), begin, length


def _registers_in(attributes: bytes) -> int:
    """Each attribute: its format, its number, two bytes; with format 4 those are a length."""
    place = 0
    while place < len(attributes):
        form, number, value = unpack_from("<BBH", attributes, place)
        if number == REGISTER_COUNT:
            return int(unpack_from("<I", attributes, place + 8)[0])
        place += 4 + (value if form == WITH_LENGTH else 0)
    return 0


def current() -> int:
    """The GPU that Triton's driver names."""
    device: int = triton_names().driver.active.get_current_device()
    return device


def check_launch(grid: tuple[int, ...], arguments: Iterable[Any]) -> None:
    """What CUDA refuses to launch: a tensor of the host, too many programs."""
    for at, each in enumerate(arguments):
        if isinstance(each, torch.Tensor) and not each.is_cuda and not each.is_pinned():
            raise ValueError(
                f"Pointer argument (at {at}) cannot be accessed from Triton (cpu tensor?)"
            )
    if any(size > most for size, most in zip(grid, MOST_PROGRAMS, strict=False)):
        raise RuntimeError("Triton Error [CUDA]: invalid argument")


class Driver:
    """Enough of `triton.backends.driver.DriverBase`, with the launcher that is given."""

    def __init__(self, launcher: Callable[..., Any]) -> None:
        self.utils = Utils()
        self.launcher_cls = launcher

    def get_current_target(self) -> Any:
        """The architecture to compile for."""
        major, minor = torch.cuda.get_device_capability()
        return triton_names().Target("cuda", 10 * major + minor, WARP)

    def get_current_device(self) -> int:
        """The current GPU."""
        return torch.cuda.current_device()

    def set_current_device(self, device: int) -> None:
        """Changes it."""
        torch.cuda.set_device(device)

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        """As torch.cuda's."""
        return torch.cuda.get_device_capability(device)

    def get_current_stream(self, device: int | None = None) -> int:
        """Its handle."""
        return torch.cuda.current_stream(device).cuda_stream

    def get_active_torch_device(self) -> torch.device:
        """The current GPU, as a torch.device."""
        return torch.device("cuda", torch.cuda.current_device())

    def get_device_interface(self) -> Any:
        """What has Event and synchronize."""
        return torch.cuda

    def get_benchmarker(self) -> Any:
        """How long a call takes: by events, as on a card."""
        from triton.testing import do_bench

        return do_bench

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """What is written to clear the second-level cache: there is none."""
        return torch.empty(1, dtype=torch.int, device="cuda")

    def clear_cache(self, cache: torch.Tensor) -> None:
        """Clears it."""
        cache.zero_()

    def assemble_tensormap_to_arg(self, tensormaps_info: Any, args: Any) -> Any:
        """Nothing to assemble."""
        return args

    def map_python_to_cpp_type(self, kind: str) -> str:
        """No launcher is compiled."""
        return kind

    @classmethod
    def is_active(cls) -> bool:
        """It is."""
        return True
