"""Asked to end by SIGTERM, a run ends after the step under way: all ranks after the same one."""

import json

from anydevice.train.distributed.failing import Watch


class Ending:
    """Whether the run is to end, asked at each moment when it could."""

    def __init__(self) -> None:
        self.asked = False

    @property
    def decided(self) -> bool:
        """Whether the moment has come."""
        return self.asked

    def ask(self) -> None:
        """Has the run end."""
        self.asked = True

    def now(self) -> bool:
        """Whether it ends at this moment."""
        return self.asked


class EndingTogether(Ending):
    """The same moment for all ranks, whichever was asked and however far ahead one is.

    Ranks that know of it write into the store the furthest moment that they may come to: the next
    one. Once all know, the furthest of all is the moment, and nobody has passed it.
    """

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
