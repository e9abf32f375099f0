"""The native library as Python calls it: loaded once, its functions' types declared."""

import ctypes
import threading
from collections.abc import Callable
from functools import cache

from anydevice.virtual import build


class Gpu(ctypes.Structure):
    """`anydevice::Gpu` in native/anydevice.h."""

    _fields_ = (
        ("memory", ctypes.c_int64),
        ("multiprocessors", ctypes.c_int),
        ("threads_per_multiprocessor", ctypes.c_int),
        ("capability", ctypes.c_int),
    )


MOST_GPUS = 16  # max_gpus there

TEXT = (
    "anydevice_enable",
    "anydevice_touch",
    "anydevice_set_current_device",
    "anydevice_memory_stat_names",
    "anydevice_memory_snapshot",
    "anydevice_memory_private_pools",
    "anydevice_synchronize",
)
NUMBERS = (
    "anydevice_current_stream",
    "anydevice_new_stream",
    "anydevice_memory_blocks",
    "anydevice_memory_highest",
)


@cache
def library() -> ctypes.CDLL:
    """The native library, built and loaded at the first call."""
    loaded = ctypes.CDLL(str(build.library()))
    for name in TEXT:
        getattr(loaded, name).restype = ctypes.c_char_p
    for name in NUMBERS:
        getattr(loaded, name).restype = ctypes.c_int64
    loaded.anydevice_allocator.restype = ctypes.c_void_p
    loaded.anydevice_set_current_stream.argtypes = (ctypes.c_int, ctypes.c_int64)
    loaded.anydevice_memory_set_capacity.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    loaded.anydevice_memory_set_fraction.argtypes = (ctypes.c_int, ctypes.c_double)
    loaded.anydevice_memory_fraction.restype = ctypes.c_double
    loaded.anydevice_pinned_allocator.restype = ctypes.c_void_p
    return loaded


def start_afresh(gpus: int, memory: int) -> None:
    """The allocators of GPUs that take the place of others: of this size, with nothing counted."""
    native = library()
    native.anydevice_memory_empty_cache(0, 0)
    for device in range(gpus):
        native.anydevice_memory_set_capacity(device, memory, 0)
        native.anydevice_memory_reset_peak(device)
        native.anydevice_memory_reset_accumulated(device)


def disable() -> None:
    """No GPUs from now on.

    The kernels stay where tensors are left, which they move to the host, and where other threads
    may be inside of them.
    """
    native = library()
    left = any(native.anydevice_memory_blocks(device) for device in range(MOST_GPUS))
    native.anydevice_disable(int(left or threading.active_count() > 1))


def refuse_absent(device: int) -> int:
    """The device's index, if there is such a device; native code takes that for granted."""
    if not 0 <= device < library().anydevice_device_count():
        raise RuntimeError(f"Invalid device argument {device}: did you call init?")
    return device


def check(error: bytes | None) -> None:
    """Raises what a native function reports."""
    if error is None:
        return
    import torch

    text = error.decode()
    raise (torch.AcceleratorError if text.startswith("CUDA error") else RuntimeError)(text)


def pair(function: Callable[..., None], device: int) -> tuple[int, int]:
    """Calls a native function that writes two figures of a device."""
    first, second = ctypes.c_int64(), ctypes.c_int64()
    function(device, ctypes.byref(first), ctypes.byref(second))
    return first.value, second.value
