"""Pools of memory apart from the common one: torch.cuda.MemPool, and what CUDA graphs share."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_int64
from typing import Any

from anydevice.virtual import core

PoolId = tuple[int, int]

_of_users = itertools.count(1)
_of_graphs = itertools.count(1)


def handle(user_created: bool = True) -> PoolId:
    """A new id, as CUDA graphs and pools of the user get theirs."""
    return (0, next(_of_users)) if user_created else (next(_of_graphs), 0)


class MemPoolBase:
    """`torch._C._MemPool`."""

    def __init__(
        self,
        allocator: Any = None,
        is_user_created: bool = True,
        use_on_oom: bool = False,
        no_split: bool = False,
    ) -> None:
        self._library = core.library()
        self._allocator = allocator
        self._id = handle(is_user_created)
        self._device = self._library.anydevice_current_device()
        self._library.anydevice_memory_retain_pool(
            self._device, *_ints(self._id), int(no_split), int(use_on_oom)
        )

    def __del__(self) -> None:
        if hasattr(self, "_device"):
            release(self._device, self._id)
            self._library.anydevice_memory_empty_cache(*_ints(self._id))

    @property
    def id(self) -> PoolId:
        """Its two numbers."""
        return self._id

    @property
    def allocator(self) -> Any:
        """The allocator given."""
        return self._allocator

    @property
    def device(self) -> int:
        """The device that was current when it was made."""
        return int(self._device)

    def use_count(self) -> int:
        """How many use it."""
        return int(self._library.anydevice_memory_pool_uses(self._device, *_ints(self._id)))


def begin(device: int, pool: PoolId) -> None:
    """From here on this thread allocates from the pool."""
    library = core.library()
    library.anydevice_memory_retain_pool(core.refuse_absent(device), *_ints(pool), 0, 0)
    _before.of.setdefault((device, pool), []).append(_in_use(device))
    library.anydevice_memory_use_pool(device, *_ints(pool))
    library.anydevice_memory_begin_capture(device)


def end(device: int, pool: PoolId) -> None:
    """This thread allocates again from where it did before."""
    before = _before.of.get((device, pool)) or [(0, 0)]
    core.library().anydevice_memory_use_pool(core.refuse_absent(device), *_ints(before.pop()))
    core.library().anydevice_memory_end_capture(device)


def release(device: int, pool: PoolId) -> None:
    """One user less: without any, its memory can be given back. The GPU may have gone before."""
    core.library().anydevice_memory_release_pool(device, *_ints(pool))


@contextmanager
def uncounted() -> Iterator[None]:
    """What this thread allocates takes no memory of the card's."""
    core.library().anydevice_memory_count(0)
    try:
        yield
    finally:
        core.library().anydevice_memory_count(1)


def names() -> dict[str, Any]:
    """What torch._C calls them."""
    return {
        "_MemPool": MemPoolBase,
        "_cuda_beginAllocateToPool": begin,
        "_cuda_beginAllocateCurrentThreadToPool": begin,
        "_cuda_beginAllocateCurrentStreamToPool": begin,
        "_cuda_endAllocateToPool": end,
        "_cuda_releasePool": lambda device, pool: release(core.refuse_absent(device), pool),
        "_cuda_checkPoolLiveAllocations": _check_live,
        "_graph_pool_handle": handle,
    }


class _Before(threading.local):
    """What each thread allocated from before it began to use a pool."""

    def __init__(self) -> None:
        self.of: dict[tuple[int, PoolId], list[PoolId]] = {}


_before = _Before()


def _in_use(device: int) -> PoolId:
    first, second = c_int64(), c_int64()
    core.library().anydevice_memory_pool_in_use(device, byref(first), byref(second))
    return first.value, second.value


def _ints(pool: PoolId) -> tuple[c_int64, c_int64]:
    return c_int64(pool[0]), c_int64(pool[1])


def _check_live(device: int, pool: PoolId, expected: set[int]) -> bool:
    import torch

    segments = torch._C._cuda_memorySnapshot(pool)["segments"]
    live = {
        block["address"]
        for segment in segments
        for block in segment["blocks"]
        if segment["device"] == device and block["state"] == "active_allocated"
    }
    return live == set(expected)
