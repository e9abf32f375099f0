"""How long the workers of a DataLoader take to make a batch."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import thread_time
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import get_worker_info

fetching: Any = torch.utils.data._utils.fetch
SLOT = struct.Struct("d")


class Workers:
    """Measures it in the workers, which write to memory that they share with this process.

    A worker is forked, with what is patched here. One that is spawned is not measured.
    """

    def __init__(self) -> None:
        self._times: dict[int, mmap.mmap] = {}  # by id of the loader: seconds, one slot a worker
        self._latest: mmap.mmap | None = None  # of the loader whose workers are started next

    def begin(self, loader: Any) -> None:
        """A loader is about to start its workers."""
        if loader.num_workers:
            size = SLOT.size * loader.num_workers
            self._latest = self._times.setdefault(id(loader), mmap.mmap(-1, size))

    def seconds(self, loader: Any) -> float:
        """The least that a batch took; 0 if none was measured."""
        times = self._times.get(id(loader))
        known = [] if times is None else [t for (t,) in SLOT.iter_unpack(times[:]) if t]
        return min(known, default=0.0)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Inside the block, workers that start are measured."""
        with ExitStack() as stack:
            for kind in (fetching._MapDatasetFetcher, fetching._IterableDatasetFetcher):
                stack.enter_context(patch.object(kind, "fetch", self._timed(kind.fetch)))
            yield

    def _timed(self, fetch: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def timed(fetcher: Any, index: Any) -> Any:
            worker, times = get_worker_info(), self._latest
            begin = thread_time()
            with _disable_current_modes():  # those of this process, which a worker inherits
                batch = fetch(fetcher, index)
            if worker is not None and times is not None:
                at = SLOT.size * worker.id
                spent, (before,) = thread_time() - begin, SLOT.unpack_from(times, at)
                SLOT.pack_into(times, at, min(spent, before or spent))
            return batch

        return timed
