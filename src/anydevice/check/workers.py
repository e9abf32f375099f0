"""How long the workers of a DataLoader take to make a batch, and what random numbers they draw."""

from __future__ import annotations

import mmap
import pickle
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import thread_time
from typing import Any
from unittest.mock import patch

import numpy
import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import get_worker_info

fetching: Any = torch.utils.data._utils.fetch
SLOT = struct.Struct("dQ")  # seconds for a batch; the random generators' state after the first
GENERATORS = (numpy.random.Generator, numpy.random.RandomState, random.Random, torch.Generator)


class Workers:
    """Measures it in the workers, which write to memory that they share with this process.

    A worker is forked, with what is patched here. One that is spawned is not measured.
    """

    def __init__(self) -> None:
        self._times: dict[int, mmap.mmap] = {}  # by id of the loader: one slot a worker
        self._latest: mmap.mmap | None = None  # of the loader whose workers are started next

    def begin(self, loader: Any) -> None:
        """A loader is about to start its workers."""
        if loader.num_workers:
            size = SLOT.size * loader.num_workers
            self._latest = self._times.setdefault(id(loader), mmap.mmap(-1, size))

    def seconds(self, loader: Any) -> float:
        """The least that a batch took; 0 if none was measured."""
        return min((seconds for seconds, _ in self._known(loader)), default=0.0)

    def draw_the_same(self, loader: Any) -> bool:
        """Whether the generators of its data set are in the same state in several workers."""
        states = [state for _, state in self._known(loader) if state]
        return len(states) > 1 and len(set(states)) == 1

    def _known(self, loader: Any) -> list[tuple[float, int]]:
        """Of each worker that has made a batch."""
        times = self._times.get(id(loader))
        return [] if times is None else [one for one in SLOT.iter_unpack(times[:]) if one[0]]

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
                spent, (before, state) = thread_time() - begin, SLOT.unpack_from(times, at)
                state = state if before else _state(worker.dataset)
                SLOT.pack_into(times, at, min(spent, before or spent), state)
            return batch

        return timed


def generators(dataset: Any) -> dict[str, Any]:
    """The random generators that a data set has, by name."""
    held = getattr(dataset, "__dict__", {}).items()
    return {name: value for name, value in held if isinstance(value, GENERATORS)}


def _state(dataset: Any) -> int:
    """A number for the state of its generators; 0 if it has none."""
    held = generators(dataset)
    return zlib.crc32(pickle.dumps(held)) if held else 0
