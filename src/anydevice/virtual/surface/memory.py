"""Memory: the caching allocator's statistics, in the shape torch.cuda.memory reads them."""

from __future__ import annotations

import json
import os
from ctypes import c_int64
from typing import Any

import torch

from anydevice.notices import say_once
from anydevice.virtual import core
from anydevice.virtual.surface import history

POOLS = ("all", "small_pool", "large_pool")
FIGURES = ("current", "peak", "allocated", "freed")
PINNED = ("allocations", "allocated_bytes", "active_requests", "active_bytes")
BY_POOL = "reserved_bytes_by_private_pools"
TIMES = ("host_alloc_time", "host_free_time")  # in microseconds

_raw: dict[int, torch.Tensor] = {}  # by address, what caching_allocator_alloc() handed out


def names() -> dict[str, Any]:
    """What torch._C calls them."""
    library = core.library()
    library.anydevice_memory_set_caching("PYTORCH_NO_CUDA_MEMORY_CACHING" not in os.environ)
    if any("cudaMallocAsync" in os.environ.get(name, "") for name in core.SETTINGS):
        say_once("Virtual GPUs have PyTorch's own allocator: backend:cudaMallocAsync is left out.")

    def empty_cache(pool: tuple[int, int] = (0, 0)) -> None:
        library.anydevice_memory_empty_cache(*(c_int64(part) for part in pool))

    def reset_peak(device: int) -> None:
        library.anydevice_memory_reset_peak(core.refuse_absent(device))

    def reset_accumulated(device: int) -> None:
        library.anydevice_memory_reset_accumulated(core.refuse_absent(device))

    def set_fraction(fraction: float, device: int) -> None:
        library.anydevice_memory_set_fraction(core.refuse_absent(device), fraction)

    def get_fraction(device: int) -> float:
        return float(library.anydevice_memory_fraction(core.refuse_absent(device)))

    return {
        "_cuda_memoryStats": _statistics,
        "_cuda_memorySnapshot": _snapshot,
        "_cuda_emptyCache": empty_cache,
        "_cuda_resetPeakMemoryStats": reset_peak,
        "_cuda_resetAccumulatedMemoryStats": reset_accumulated,
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_getMemoryFraction": get_fraction,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_getAllocator": lambda: None,
        "_cuda_cudaCachingAllocator_enable": (
            lambda on: library.anydevice_memory_set_caching(int(on))
        ),
        "_cuda_cudaCachingAllocator_is_enabled": lambda: bool(
            library.anydevice_memory_is_caching()
        ),
        "_cuda_cudaCachingAllocator_raw_alloc": _raw_alloc,
        "_cuda_cudaCachingAllocator_raw_delete": _raw_delete,
        "_cuda_hostMemoryStats": _pinned_statistics,
        "_cuda_resetPeakHostMemoryStats": lambda: library.anydevice_pinned_reset_peak(),
        "_cuda_resetAccumulatedHostMemoryStats": (
            lambda: library.anydevice_pinned_reset_accumulated()
        ),
        "_host_emptyCache": lambda: library.anydevice_pinned_empty_cache(),
        "_accelerator_emptyHostCache": lambda: library.anydevice_pinned_empty_cache(),
        "_cuda_cudaHostAllocator": lambda: library.anydevice_pinned_allocator(),
        "_cuda_lock_mutex": lambda: None,
        "_cuda_unlock_mutex": lambda: None,
        **history.names(),
    }


def _statistics(device: int) -> dict[str, Any]:
    library = core.library()
    keys = library.anydevice_memory_stat_names().decode().split("\n")
    figures = (c_int64 * len(keys))()
    library.anydevice_memory_stats(core.refuse_absent(device), figures)
    nested: dict[Any, Any] = {}
    for key, figure in zip(keys, figures, strict=True):
        *path, last = key.split(".")
        level = nested
        for part in path:
            level = level.setdefault(part, {})
        level[last] = figure
    if BY_POOL in str(torch.cuda.memory.memory_stats.__doc__):  # from torch 2.13 on
        nested[BY_POOL] = _reserved_by_pool(device)
    return nested


def _reserved_by_pool(device: int) -> dict[tuple[int, int], Any]:
    pools = json.loads(core.library().anydevice_memory_private_pools(device))
    return {
        (first, second): {
            pool: dict(zip(FIGURES, numbers[4 * i : 4 * i + 4], strict=True))
            for i, pool in enumerate(POOLS)
        }
        for first, second, *numbers in pools
    }


def _snapshot(wanted: tuple[int, ...] | None = None) -> dict[str, Any]:
    """Of the pool that is wanted, or of all; as a third element, whether with the history."""
    library = core.library()
    first, second, *rest = wanted or (0, 0, True)
    traces = history.traces() if not rest or rest[0] else []  # without the event of this snapshot
    segments = []
    for device in range(library.anydevice_device_count()):
        found = library.anydevice_memory_snapshot(device, c_int64(first), c_int64(second))
        for segment in json.loads(found):
            segment["segment_pool_id"] = tuple(segment["segment_pool_id"])
            segments.append(segment)
    history.add_frames(segments)
    settings = getattr(torch._C, "_accelerator_getAllocatorSettings", str)()
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": settings},
        "external_annotations": [],
    }


def _pinned_statistics() -> dict[str, Any]:
    figures = (c_int64 * ((len(PINNED) + len(TIMES)) * len(FIGURES)))()
    core.library().anydevice_pinned_stats(figures)
    stats: dict[str, Any] = {
        name: dict(zip(FIGURES, figures[4 * i : 4 * i + 4], strict=True))
        for i, name in enumerate(PINNED)
    }
    stats["num_host_alloc"] = stats["allocations"]["allocated"]
    stats["num_host_free"] = stats["allocations"]["freed"]
    for i, name in enumerate(TIMES, len(PINNED)):
        total, most, least, count = figures[4 * i : 4 * i + 4]
        spent = {"total": total, "max": most, "min": least, "count": count}
        stats[name] = spent | {"avg": total / count if count else 0}
    return stats


def _raw_alloc(size: int, stream: int) -> int:
    library = core.library()
    device = library.anydevice_current_device()
    before = library.anydevice_current_stream(device)
    library.anydevice_set_current_stream(device, stream)
    try:
        block = torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", device))
    finally:
        library.anydevice_set_current_stream(device, before)
    address = block.data_ptr() or id(block)  # a hollow one has no bytes
    _raw[address] = block
    return address


def _raw_delete(address: int) -> None:
    if address not in _raw:
        raise RuntimeError(f"invalid device pointer: {address:#x}")
    del _raw[address]
