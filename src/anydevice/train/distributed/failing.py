"""A rank that fails ends all ranks with its error, instead of leaving them to wait for it."""

import json
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from anydevice import system
from anydevice.notices import log
from anydevice.train.ranks import Ranks, leave_at_once

LOOK = 0.25  # seconds between two looks at the other ranks
GRACE = 10.0  # seconds for the others to learn of an error, and to end by themselves
FAILURES = (Exception, KeyboardInterrupt)  # others end a program on purpose: sys.exit(), a plan
ENDED = "it ended without an error, as a killed process does"


class RankError(RuntimeError):
    """Another rank failed; the text has its number and its error."""


class Watch:
    """Inside the block, ranks learn at once that another has failed or is gone.

    The message goes through the store that the ranks met at, which does not wait for any device.
    A thread listens, since the training itself may be waiting for the rank that is gone.
    """

    scopes = 0  # the same number on all ranks: they enter the same blocks

    def __init__(self, ranks: Ranks) -> None:
        Watch.scopes += 1
        self.ranks = ranks
        self.store = PrefixStore(f"anydevice/{Watch.scopes}", _get_default_store().clone())  # type: ignore[attr-defined]
        self.on_look: list[Callable[[], None]] = []
        self._announced = False
        self._over = threading.Event()
        self._wake, self._waker = os.pipe()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._lives = _open(ranks)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if not isinstance(error, FAILURES):
                with suppress(dist.DistError):  # the rank that kept the store has left already
                    self.store.set(f"left/{self.ranks.rank}", "")
            else:
                self._failed(error)
        finally:
            self._over.set()
            os.close(self._waker)  # which wakes the thread
            self._thread.join()
            for descriptor in (self._wake, *self._lives):
                os.close(descriptor)

    def first(self) -> tuple[int, str] | None:
        """The rank that failed first, and its error."""
        if not self.store.check(["error"]):
            return None
        rank, text = json.loads(self.store.get("error"))
        return rank, text

    def failed(self, error: BaseException) -> None:
        """Informs the others at once: what this rank does on its way out may wait for them."""
        leave_at_once()
        if isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError):
            self._hear_first()  # it may come of another rank's end
        self._say(self.ranks.rank, _text(error))

    def _failed(self, error: BaseException) -> None:
        self.failed(error)
        rank, text = self.first() or (self.ranks.rank, "")
        if rank == self.ranks.rank:
            end = time.monotonic() + GRACE
            while time.monotonic() < end and self.store.add("heard", 0) < self.ranks.world - 1:
                time.sleep(0.01)
            return
        self._announce(rank, text)
        if isinstance(error, RuntimeError):
            raise RankError(f"rank {rank} failed first: {text}") from None

    def _hear_first(self) -> None:
        end = time.monotonic() + 8 * LOOK
        while time.monotonic() < end and not self.first():
            time.sleep(0.01)

    def _say(self, rank: int, text: str) -> None:
        self.store.compare_set("error", "", json.dumps([rank, text]))

    def _listen(self) -> None:
        poll = select.poll()
        for descriptor in (self._wake, *self._lives):
            poll.register(descriptor, select.POLLIN)
        try:
            while not self._over.is_set():
                for descriptor, _ in poll.poll(1000 * LOOK):
                    poll.unregister(descriptor)
                    if descriptor in self._lives:
                        self._ended(self._lives[descriptor])
                for look in self.on_look:
                    look()
                first = self.first()
                if first and first[0] != self.ranks.rank:
                    self._end(*first)
                    return
        except dist.DistError:
            return  # the store is gone, and with it the launcher, which ends the ranks

    def _ended(self, rank: int) -> None:
        if not self.store.check([f"left/{rank}"]):
            self._say(rank, ENDED)

    def _end(self, rank: int, text: str) -> None:
        """Ends the process where it cannot come to its end by itself, as it waits for the rank."""
        self._announce(rank, text)
        if not self._over.wait(GRACE):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)

    def _announce(self, rank: int, text: str) -> None:
        if not self._announced:
            self._announced = True
            log.error(f"anydevice: rank {self.ranks.rank} stops: rank {rank} failed: {text}")
            self.store.add("heard", 1)


def _open(ranks: Ranks) -> dict[int, int]:
    """For each other rank of this machine, a descriptor that is readable once it has ended."""
    home = ranks.homes[ranks.rank][0]
    there = {
        rank: process
        for rank, (machine, process) in enumerate(ranks.homes)
        if machine == home and rank != ranks.rank
    }
    return dict(zip(system.ends([*there.values()]), there, strict=True))


def _text(error: BaseException) -> str:
    notes: list[Any] = getattr(error, "__notes__", [])
    return "; ".join([f"{type(error).__name__}: {error}", *map(str, notes)])
