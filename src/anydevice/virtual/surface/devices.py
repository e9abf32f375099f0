"""Devices: how many, which one, what each says of itself."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from ctypes import c_uint64
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import torch

from anydevice import system
from anydevice.devices.catalogue import Card
from anydevice.virtual import core
from anydevice.virtual.visible import Visible, uuid

CUDA_VERSION = "13.0"
WHEEL = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"  # what PyTorch's own is built for

# torch::utils::set_requires_device_init(c10::DeviceType, bool)
SET_REQUIRES_DEVICE_INIT = "_ZN5torch5utils24set_requires_device_initEN3c1010DeviceTypeEb"
INIT = "_cuda_init"
CUDA = 1  # c10::DeviceType
WARP = 32
CLOCK = 1.4e9  # cycles a second, for torch.cuda._sleep()
_handles = itertools.count(0x7F0000000000, 0x1000)  # of streams that cudart makes
_visible = Visible(0)  # of the machine that was shown last
# Shared memory by capability in KiB: what a block may ask for, and of a multiprocessor.
SHARED = {
    (5, 2): (48, 96),
    (6, 0): (48, 64),
    (6, 1): (48, 96),
    (7, 0): (96, 96),
    (7, 5): (64, 64),
    (8, 0): (163, 164),
    (9, 0): (227, 228),
    (10, 0): (227, 228),
}
SHARED_OF_OTHERS = (99, 100)  # 8.6, 8.9, 12.0
# Multiply-adds in float32 that a multiprocessor begins in a cycle, by capability.
CORES = {(6, 0): 64, (7, 0): 64, (7, 5): 64, (8, 0): 64}
CORES_OF_OTHERS = 128
CUDA_ERRORS = {
    0: "no error",
    1: "invalid argument",
    2: "out of memory",
    3: "initialization error",
    100: "no CUDA-capable device is detected",
    101: "invalid device ordinal",
    400: "invalid resource handle",
    700: "an illegal memory access was encountered",
    710: "device-side assert triggered",
    712: "part or all of the requested memory range is already mapped",
    713: "pointer does not correspond to a registered memory region",
    719: "unspecified launch failure",
    900: "operation not permitted when stream is capturing",
    901: "operation failed due to a previous error during capture",
}


class Uuid:
    """`torch._C._CUuuid`."""

    def __init__(self, text: str) -> None:
        self._uuid = UUID(text)

    @property
    def bytes(self) -> list[int]:
        """Its 16 bytes."""
        return list(self._uuid.bytes)

    def __str__(self) -> str:
        return str(self._uuid)


def names(gpus: int, gpu: Card) -> dict[str, Any]:
    """What torch._C calls them."""
    global _visible
    library = core.library()
    _visible = visible = Visible(gpus)

    def initialise() -> None:
        library.anydevice_touch()
        if not (seen := visible.for_good()):
            _no_gpus()
        with torch._C._DisableTorchDispatch():  # a mode might ask for CUDA, which is not ready yet
            torch.cuda.default_generators = tuple(
                torch.ops.anydevice.default_generator(device) for device in range(len(seen))
            )
        cuda: Any = torch.cuda
        cuda._get_device_properties = [_properties(gpu, device) for device in seen].__getitem__

    def count() -> int:
        if library.anydevice_forked():
            return 0
        library.anydevice_touch()
        return len(visible.for_good())

    def set_device(device: int) -> None:
        if device >= 0:
            torch.cuda._lazy_init()  # type: ignore[no-untyped-call]
            library.anydevice_set_current_device(device)

    def exchange(device: int) -> int:
        if device < 0:
            return -1
        before: int = library.anydevice_current_device()
        set_device(device)
        return before

    def maybe_exchange(device: int) -> int:  # TorchDynamo wants a function for each name
        return exchange(device)

    flags = WHEEL if gpu.capability >= (7, 5) else "sm_{}{} ".format(*gpu.capability) + WHEEL
    return {
        "_has_cuda": True,
        "_CudaDeviceProperties": CudaDeviceProperties,
        "_CUuuid": Uuid,
        INIT: initialise,
        "_cuda_getDeviceCount": count,
        "_cuda_isInBadFork": lambda: bool(library.anydevice_forked()),
        "_cuda_getDevice": lambda: library.anydevice_current_device(),
        "_cuda_setDevice": set_device,
        "_cuda_exchangeDevice": exchange,
        "_cuda_maybeExchangeDevice": maybe_exchange,
        "_cuda_canDeviceAccessPeer": lambda device, peer: device != peer,
        "_cuda_getArchFlags": lambda: flags,
        "_cuda_getCompiledVersion": lambda: 13000,
        "_cuda_sleep": lambda cycles: library.anydevice_sleep(cycles / CLOCK),
        "_cuda_hasPrimaryContext": lambda device: bool(library.anydevice_has_context(device)),
        "_cudart": cudart(),
    }


def attributes(gpu: Card) -> Iterator[tuple[Any, str, Any]]:
    """What torch.cuda and torch.version took from torch._C when they were imported."""
    from_c: tuple[tuple[str, str], ...] = (
        ("_is_in_bad_fork", "_cuda_isInBadFork"),
        ("_exchange_device", "_cuda_exchangeDevice"),
        ("_maybe_exchange_device", "_cuda_maybeExchangeDevice"),
        ("_CudaDeviceProperties", "_CudaDeviceProperties"),
        ("_cudart", "_cudart"),
    )
    for name, source in from_c:
        yield torch.cuda, name, getattr(torch._C, source)
    yield torch.cuda, "_device_count_nvml", _count_before_use
    yield torch.cuda, "_cached_device_count", None
    yield torch.cuda, "default_generators", ()
    yield torch.cuda, "_get_device_properties", None  # until torch.cuda is initialised
    yield torch.version, "cuda", CUDA_VERSION


def _count_before_use() -> int:
    """As NVML counts them for torch: CUDA may see others later. -1 where it has looked already."""
    known = _visible.chosen is not None or core.library().anydevice_forked()
    return -1 if known else len(_visible.now())


def ask_again() -> None:
    """Has torch call torch.cuda._lazy_init at the next use of `cuda`, as before the first one."""
    libraries = Path(torch.__file__).parent / "lib"
    library = ctypes.CDLL(str(libraries / system.library_file("libtorch_python")))
    library[SET_REQUIRES_DEVICE_INIT](ctypes.c_int8(CUDA), ctypes.c_bool(True))
    if core.is_loaded() and core.library().anydevice_initialised() and hasattr(torch._C, INIT):
        setattr(torch._C, INIT, _no_gpus)  # a CUDA build's own would not look for GPUs any more


def _no_gpus() -> None:
    raise RuntimeError("No CUDA GPUs are available")


class CudaDeviceProperties(SimpleNamespace):
    """The type of torch.cuda.get_device_properties()."""

    virtual = True  # what a card's lacks: by it ad.devices() says what it is looking at

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // 2**20}MB, "
            f"multi_processor_count={self.multi_processor_count}, uuid={self.uuid}, "
            f"pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size // 2**20}MB)"
        )


def _properties(gpu: Card, device: int) -> CudaDeviceProperties:
    major, minor = gpu.capability
    of_block, of_multiprocessor = SHARED.get(gpu.capability, SHARED_OF_OTHERS)
    cores = CORES.get(gpu.capability, CORES_OF_OTHERS)
    return CudaDeviceProperties(
        name=gpu.name,
        major=major,
        minor=minor,
        total_memory=gpu.memory,
        multi_processor_count=gpu.multiprocessors,
        max_threads_per_multi_processor=gpu.threads_per_multiprocessor,
        max_threads_per_block=1024,
        warp_size=WARP,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=of_block << 10,
        shared_memory_per_multiprocessor=of_multiprocessor << 10,
        L2_cache_size=gpu.l2_cache,
        clock_rate=_kilohertz(gpu.peak["float32"] / (2 * cores * gpu.multiprocessors)),
        memory_clock_rate=_kilohertz(gpu.bandwidth * 8 / (2 * gpu.memory_bus)),
        memory_bus_width=gpu.memory_bus,
        is_integrated=False,
        is_multi_gpu_board=False,
        gcnArchName=gpu.name,
        uuid=Uuid(uuid(device)),
        pci_bus_id=device,
        pci_device_id=0,
        pci_domain_id=0,
    )


def _kilohertz(clock: float) -> int:
    """A clock as cards report theirs: in whole megahertz."""
    return round(clock / 1e6) * 1000


def cudart() -> Any:
    """What torch.cuda.cudart() returns: the parts of the CUDA runtime that torch binds."""
    library = core.library()

    class CudaError(int):
        success = 0

    def memory_info(device: int) -> tuple[int, int]:
        core.refuse_absent(device)
        return core.pair(library.anydevice_memory_info, device)

    def stream_create(place: int) -> CudaError:
        handle = c_uint64(next(_handles))
        ctypes.memmove(place, ctypes.byref(handle), ctypes.sizeof(handle))
        return CudaError(0)

    def register(address: int, size: int, flags: int) -> CudaError:
        return CudaError(library.anydevice_pinned_register(c_uint64(address), c_uint64(size)))

    def unregister(address: int) -> CudaError:
        return CudaError(library.anydevice_pinned_unregister(c_uint64(address)))

    nothing: Callable[..., CudaError] = lambda *arguments: CudaError(0)  # noqa: E731
    return SimpleNamespace(
        cudaError=CudaError,
        cudaMemGetInfo=memory_info,
        cudaGetErrorString=lambda code: CUDA_ERRORS.get(code, "unrecognized error code"),
        cudaProfilerStart=nothing,
        cudaProfilerStop=nothing,
        cudaHostRegister=register,
        cudaHostUnregister=unregister,
        cudaStreamCreate=stream_create,
        cudaStreamDestroy=nothing,
        cudaStreamCaptureMode=SimpleNamespace(Global=0, ThreadLocal=1, Relaxed=2),
    )
