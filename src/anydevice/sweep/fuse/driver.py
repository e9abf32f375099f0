"""Many small nets as one program: runs that differ only in numbers of the optimizer or the seed.

The experiments stay as they are: see process.py.
"""

import json
from collections import deque
from collections.abc import Sequence
from typing import Any

from anydevice.notices import log
from anydevice.sweep.grid import Run
from anydevice.sweep.processes.places import Place, Places
from anydevice.sweep.processes.pool import Processes
from anydevice.sweep.processes.runner import BETWEEN, Order, Runner, Watcher
from anydevice.sweep.records.records import Record, RecordError, read
from anydevice.sweep.jsonable import lenient

# Parameters in which runs of a group may differ.
FUSED = ("lr", "learning_rate", "weight_decay", "momentum", "seed")


def do(order: Order, places: Places, watcher: Watcher, runs: Sequence[Run]) -> list[Run]:
    """Does the runs that are faster as one, and gives those that are left to do one by one."""
    groups = groups_of(runs)
    if not groups:
        names = ", ".join(FUSED)
        log.warning(f"anydevice: no runs are trained as one: none differ only in {names}.")
        return list(runs)
    return _Fusing(order, places, watcher).do(groups, runs)


def groups_of(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that differ only in what may differ, where there are two or more."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        others = {n: value for n, value in run.parameters.items() if n not in FUSED}
        groups.setdefault(json.dumps(others, sort_keys=True), []).append(run)
    return [group for group in groups.values() if len(group) > 1]


class _Fusing:
    """Hands out groups of runs to processes until all are done, or known not to be."""

    def __init__(self, order: Order, places: Places, watcher: Watcher) -> None:
        self.order, self.places, self.watcher = order, places, watcher
        self.running: dict[int, tuple[list[Run], Place]] = {}
        self.ended: set[str] = set()

    def do(self, groups: list[list[Run]], runs: Sequence[Run]) -> list[Run]:
        waiting = deque(groups)
        self.processes = Processes(self.order.experiment)
        try:
            while waiting or self.running:
                while waiting and (place := self.places.take(waiting[0][0])):
                    self._start(waiting.popleft(), place)
                for number, said in self.processes.messages(BETWEEN):
                    self._hear(number, said)
                self.watcher.tick()
        finally:
            self.processes.close()
        return [run for run in runs if run.key not in self.ended]

    def _start(self, group: list[Run], place: Place) -> None:
        job = Runner(self.order, self.places, self.watcher).job(group[0], place)
        job |= {"group": [run.parameters for run in group], "workers": self.places.workers}
        self.running[self.processes.start(job)] = group, place
        for run in group:
            self.watcher.started(run)

    def _hear(self, number: int, said: dict[str, Any]) -> None:
        group, place = self.running[number]
        if "disk" in said:
            raise RecordError(said["disk"])
        if "said" in said:
            log.warning(f"anydevice: {len(group)} runs {said['said']}.")
        if "epoch" in said:
            run = next(run for run in group if run.key == said["run"])
            figures = lenient(said["epoch"])
            self.watcher.epoch(run, figures)
            if said["asks"] and (halving := self.order.halving):
                verdict = halving.goes_on(run.key, figures["epoch"], figures[halving.watch])
                self.processes.answer(number, verdict)
        if "code" in said:
            del self.running[number]
            self.places.give_back(place)
            for run in group:
                there = read(self.order.folder, run.key)
                if isinstance(there, Record) and there.finished:
                    self.ended.add(run.key)
                    self.watcher.ended(run, there)
