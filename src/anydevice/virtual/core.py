"""The native library as Python calls it: loaded once, its functions' types declared."""

import ctypes
import os
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

from anydevice.errors import UsageError
from anydevice.virtual import build

SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # of the allocator


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
    "anydevice_memory_stat_names",
    "anydevice_memory_snapshot",
    "anydevice_memory_private_pools",
    "anydevice_left_out",
    "anydevice_take_note",
    "anydevice_script_frames",
    "anydevice_memory_recorded",
)
ERRORS = (  # what they return; it is raised
    "anydevice_enable",
    "anydevice_disable",
    "anydevice_touch",
    "anydevice_invalidate",
    "anydevice_set_current_device",
    "anydevice_synchronize",
    "anydevice_synchronize_event",
    "anydevice_memory_stats",
    "anydevice_memory_empty_cache",
    "anydevice_memory_info",
    "anydevice_memory_retain_pool",
    "anydevice_memory_release_pool",
    "anydevice_memory_reset_peak",
    "anydevice_memory_reset_accumulated",
    "anydevice_memory_set_capacity",
    "anydevice_memory_set_fraction",
    "anydevice_memory_tell_history",
    "anydevice_pinned_stats",
    "anydevice_pinned_reset_peak",
    "anydevice_pinned_reset_accumulated",
    "anydevice_pinned_empty_cache",
    "anydevice_pinned_begin_pool",
    "anydevice_pinned_end_pool",
    "anydevice_pinned_release_pool",
)
NUMBERS = (
    "anydevice_current_stream",
    "anydevice_new_stream",
    "anydevice_memory_blocks",
    "anydevice_memory_highest",
)


@cache
def path() -> Path:
    """Where the native library is, built and checked at the first call."""
    return build.library()


def is_loaded() -> bool:
    """Whether this process has the native library."""
    return library.cache_info().currsize > 0


@cache
def library() -> ctypes.CDLL:
    """The native library, loaded at the first call."""
    try:
        loaded = ctypes.CDLL(str(path()))
    except OSError as error:
        raise build.BuildError(
            f"the virtual GPU's library cannot be loaded ({error}): remove {path().parent} to have "
            "it built anew."
        ) from error
    for name in TEXT:
        getattr(loaded, name).restype = ctypes.c_char_p
    for name in ERRORS:
        getattr(loaded, name).restype = ctypes.c_char_p
        getattr(loaded, name).errcheck = _check
    for name in NUMBERS:
        getattr(loaded, name).restype = ctypes.c_int64
    loaded.anydevice_allocator.restype = ctypes.c_void_p
    loaded.anydevice_invalidate.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
    loaded.anydevice_set_current_stream.argtypes = (ctypes.c_int, ctypes.c_int64)
    loaded.anydevice_memory_set_capacity.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    loaded.anydevice_memory_set_fraction.argtypes = (ctypes.c_int, ctypes.c_double)
    loaded.anydevice_memory_fraction.restype = ctypes.c_double
    loaded.anydevice_sleep.argtypes = (ctypes.c_double,)
    loaded.anydevice_wait_until.argtypes = (ctypes.c_double,)
    loaded.anydevice_now.restype = ctypes.c_double
    loaded.anydevice_ready_at.restype = ctypes.c_double
    loaded.anydevice_ready_at.argtypes = (ctypes.c_int, ctypes.c_int64)
    loaded.anydevice_stream_waits.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_double)
    loaded.anydevice_trace_event.argtypes = (ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64)
    loaded.anydevice_pinned_allocator.restype = ctypes.c_void_p
    loaded.anydevice_skip_draws.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
    return loaded


def start_afresh(gpus: int, memory: int) -> None:
    """The allocators of GPUs that take the place of others: of this size, with nothing counted."""
    native = library()
    native.anydevice_memory_empty_cache(0, 0)
    for device in range(gpus):
        try:
            native.anydevice_memory_set_capacity(device, memory, 0)
        except RuntimeError as error:  # PyTorch's parser reads the settings at the first call
            given = [f"{name}={os.environ[name]}" for name in SETTINGS if name in os.environ]
            raise UsageError(
                f"expected allocator settings that PyTorch knows, got {' '.join(given)}: {error}"
            ) from error
        native.anydevice_memory_reset_peak(device)
        native.anydevice_memory_reset_accumulated(device)


def left_out() -> list[str]:
    """The ops whose kernels do not match this torch, each with the reason."""
    text: bytes = library().anydevice_left_out()
    return text.decode().splitlines()


def disable() -> None:
    """No GPUs from now on.

    The kernels stay where tensors are left, which they move to the host, and where other threads
    may be inside of them.
    """
    if not library.cache_info().currsize:  # it could not be loaded
        return
    native = library()
    left = any(native.anydevice_memory_blocks(device) for device in range(MOST_GPUS))
    native.anydevice_disable(int(left or threading.active_count() > 1))


def refuse_absent(device: int) -> int:
    """The device's index, if there is such a device; native code takes that for granted."""
    if not 0 <= device < library().anydevice_device_count():
        raise RuntimeError(f"Invalid device argument {device}: did you call init?")
    return device


def _check(error: bytes | None, function: object, arguments: tuple[object, ...]) -> None:
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
