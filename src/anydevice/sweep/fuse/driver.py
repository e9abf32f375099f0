"""Many small nets as one program: runs that differ only in numbers of the optimizer or the seed.

The experiments stay as they are: see fuse/process.py.
"""

import json
from collections.abc import Sequence

from anydevice.notices import log
from anydevice.sweep.grid import Run
from anydevice.sweep.processes.driver import Driver, Runs, Settings, Watcher
from anydevice.sweep.processes.places import Places
from anydevice.sweep.records.records import Record, read

# Parameters in which runs of a group may differ.
FUSED = ("lr", "learning_rate", "weight_decay", "momentum", "seed")


def do(settings: Settings, places: Places, watcher: Watcher, runs: Sequence[Run]) -> list[Run]:
    """Does the runs that are faster as one, and gives those that are left to do one by one."""
    groups = groups_of(runs)
    if not groups:
        names = ", ".join(FUSED)
        log.warning(f"anydevice: no runs are trained as one, because none differ only in {names}.")
        return list(runs)
    return _Fusing(settings, places, watcher).do(groups, runs)


def groups_of(runs: Sequence[Run]) -> list[list[Run]]:
    """Groups of two or more runs that differ only in parameters that may differ."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        others = {n: value for n, value in run.parameters.items() if n not in FUSED}
        groups.setdefault(json.dumps(others, sort_keys=True), []).append(run)
    return [group for group in groups.values() if len(group) > 1]


class _Fusing(Driver):
    """Hands out groups of runs to processes; runs that are not done afterwards are done alone."""

    worker = "anydevice.sweep.fuse.process"

    def do(self, groups: list[list[Run]], runs: Sequence[Run]) -> list[Run]:
        self.done: set[str] = set()
        self.work(map(tuple, groups))
        return [run for run in runs if run.key not in self.done]

    def ended(self, runs: Runs, code: int, *, taken: bool) -> None:
        for run in runs:
            record = read(self.settings.folder, run.key)
            if isinstance(record, Record) and record.finished:
                self.done.add(run.key)
                self.watcher.ended(run, record)
