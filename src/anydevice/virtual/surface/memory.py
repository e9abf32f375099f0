"""Memory: the caching allocator's statistics, in the shape torch.cuda.memory reads them."""

import json
from collections.abc import Callable
from ctypes import c_int64
from typing import Any

from anydevice.virtual import core


def names() -> dict[str, Any]:
    """What torch._C calls them."""
    library = core.library()
    keys = library.anydevice_memory_stat_names().decode().split("\n")

    def statistics(device: int) -> dict[str, Any]:
        figures = (c_int64 * len(keys))()
        library.anydevice_memory_stats(core.refuse_absent(device), figures)
        nested: dict[str, Any] = {}
        for key, figure in zip(keys, figures, strict=True):
            *path, last = key.split(".")
            level = nested
            for part in path:
                level = level.setdefault(part, {})
            level[last] = figure
        return nested

    def snapshot(*_: object) -> dict[str, Any]:
        devices = range(library.anydevice_device_count())
        segments = [
            segment
            for device in devices
            for segment in json.loads(library.anydevice_memory_snapshot(device))
        ]
        return {"segments": segments, "device_traces": [[] for _ in devices]}

    def set_fraction(fraction: float, device: int) -> None:
        library.anydevice_memory_set_fraction(core.refuse_absent(device), fraction)

    nothing: Callable[..., None] = lambda *arguments: None  # noqa: E731
    return {
        "_cuda_memoryStats": statistics,
        "_cuda_memorySnapshot": snapshot,
        "_cuda_emptyCache": lambda *_: library.anydevice_memory_empty_cache(),
        "_cuda_resetPeakMemoryStats": (
            lambda device: library.anydevice_memory_reset_peak(core.refuse_absent(device))
        ),
        "_cuda_resetAccumulatedMemoryStats": (
            lambda device: library.anydevice_memory_reset_accumulated(core.refuse_absent(device))
        ),
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_getMemoryFraction": lambda device: library.anydevice_memory_fraction(
            core.refuse_absent(device)
        ),
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_record_memory_history": nothing,
        "_cuda_record_memory_history_legacy": nothing,
        "_cuda_cudaCachingAllocator_enable": nothing,
        "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
    }
