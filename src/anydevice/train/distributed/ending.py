"""Asked to end by SIGTERM, a run ends after the step under way: all ranks after the same one.

Note [How ranks end together]
-----------------------------
SIGTERM may reach any of the ranks, at any time, and the host of one may be some steps ahead of
another's. They must all stop after the same step: a checkpoint needs all of them, and a rank that
made one step more would wait for the others for ever. No collective can be added to each step for
this, since that would make every run slower.

A moment is a point where a run could end: after a step, or after an epoch. Each rank counts them.

1. The signal handler only sets `asked`.
2. At its next moment a rank that was asked writes into the store, in one atomic exchange, that it
   knows, and the furthest moment that any rank that knows may come to. The others see the entry
   when their watching thread looks (`Watch.on_look`), and do the same at their next moment.
3. The last rank to know finds all the others in the entry. The furthest moment in it is now final:
   each rank has announced the next one before it went there, so none has passed it.
4. Each rank continues to that moment, writes its part of the checkpoint, and exits with TERMINATED.

A rank that fails is another matter: `failing.Watch` ends all of them at once.
"""

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from anydevice.train.distributed.failing import Watch

TERMINATED = 128 + signal.SIGTERM  # the exit code of a process that died of it


@contextmanager
def asked_to_end(notice: Callable[[], None]) -> Iterator[None]:
    """Calls `notice` on SIGTERM instead of dying of it; signals reach the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: notice())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)  # None: not set from Python


class Ending:
    """Whether the run is to end, asked at each moment when it could."""

    def __init__(self) -> None:
        self.asked = False

    @property
    def decided(self) -> bool:
        """Whether the moment has come."""
        return self.asked

    def ask(self) -> None:
        """Asks for the end of the run."""
        self.asked = True

    def now(self) -> bool:
        """Whether it ends at this moment."""
        return self.asked


class EndingTogether(Ending):
    """The same moment for all ranks, whichever was asked: see Note [How ranks end together]."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch
        self.moment = 0
        self.last: int | None = None
        watch.on_look.append(self._look)

    def now(self) -> bool:  # noqa: D102
        self.moment += 1
        if self.asked and self.last is None:
            self._agree()
        return self.decided

    @property
    def decided(self) -> bool:  # noqa: D102
        return self.moment == self.last

    def _look(self) -> None:
        if self.watch.store.check(["ending"]):
            self.asked = True

    def _agree(self) -> None:
        store, ranks = self.watch.store, self.watch.ranks
        found = ""
        while self.last is None:
            known, furthest = json.loads(found) if found else ([], 0)
            if len(known) == ranks.world:
                self.last = furthest
                return
            known = sorted({*known, ranks.rank})
            next_one = self.moment + (len(known) < ranks.world)
            mine = json.dumps([known, max(furthest, next_one)])
            if mine == found:
                return
            found = store.compare_set("ending", found, mine).decode()
            if found == mine and len(known) < ranks.world:
                return
