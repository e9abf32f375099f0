"""How a program's batches are fetched: within what, and watched only as far as a GPU is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import dataloader

BASE: Any = dataloader._BaseDataLoaderIter
OF_WORKERS: Any = dataloader._MultiProcessingDataLoaderIter


@contextmanager
def fetching_within(
    around: Callable[[], AbstractContextManager[None]],
    used: Callable[[], object],
    before: Callable[[], None],
) -> Iterator[None]:
    """Inside the block, each batch of a DataLoader is fetched within `around()`.

    A loader whose first batch left `used()` as it was, what the program did on GPUs, fetches the
    others without any mode: a data set has many small ops. So do its workers from the start. What
    modes have left undone is done `before()`.
    """
    fetch, start = BASE.__next__, OF_WORKERS.__init__
    on_host: WeakSet[Any] = WeakSet()

    def fetch_within(self: Any) -> Any:
        with around():
            if self in on_host:
                before()
                with _disable_current_modes():
                    return fetch(self)
            unused = used()
            batch = fetch(self)
            if used() == unused:
                on_host.add(self)
            return batch

    def start_without_modes(self: Any, *arguments: Any) -> None:
        before()
        with _disable_current_modes():  # a worker is forked, and would keep them
            start(self, *arguments)

    with (
        patch.object(BASE, "__next__", fetch_within),
        patch.object(OF_WORKERS, "__init__", start_without_modes),
    ):
        yield
