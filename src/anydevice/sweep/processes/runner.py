"""Does the runs of a sweep that are not done: several at a time, whatever becomes of each."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Protocol

from anydevice.sweep.experiment import Shipped
from anydevice.sweep.grid import Run
from anydevice.sweep.halving import Halving
from anydevice.sweep.jsonable import lenient
from anydevice.sweep.processes.places import Place, Places
from anydevice.sweep.processes.pool import Processes
from anydevice.sweep.processes.worker import DISK, OUTPUT, again
from anydevice.sweep.records.claims import Claim, claim, is_claimed
from anydevice.sweep.records.records import Damaged, Record, RecordError, folder_of, read, write
from anydevice.text import signal_name

BETWEEN = 0.25  # seconds between two looks at runs that another sweep has
PATIENCE = 10.0  # seconds
TAIL = 2000  # characters of a crashed run's output that its record keeps


class Watcher(Protocol):
    """Who is told of what happens, to show it."""

    def started(self, run: Run) -> None:
        """A run has begun."""

    def epoch(self, run: Run, figures: dict[str, Any]) -> None:
        """An epoch of it is over."""

    def ended(self, run: Run, record: Record) -> None:
        """It is over, in whatever way; by this sweep or by another one in the same folder."""

    def tick(self) -> None:
        """Time goes by."""


@dataclass
class Order:
    """What every run of one call is given."""

    folder: Path
    experiment: Shipped
    about: dict[str, Any]
    seed: int
    retry_failed: bool = False
    halving: Halving | None = None


@dataclass
class Runner:
    """Hands out runs to processes until all are done."""

    order: Order
    places: Places
    watcher: Watcher
    waiting: deque[Run] = field(default_factory=deque)
    elsewhere: list[Run] = field(default_factory=list)  # another sweep's, for now
    running: dict[int, tuple[Run, Place]] = field(default_factory=dict)
    claimed: set[int] = field(default_factory=set)  # of them, those that another sweep had first

    def do(self, runs: Iterable[Run]) -> None:
        """Returns when the runs are done, whoever did them."""
        self.waiting.extend(runs)
        processes = Processes(self.order.experiment)
        try:
            while self.waiting or self.running or self.elsewhere:
                self._start(processes)
                for number, said in processes.messages(BETWEEN):
                    self._hear(processes, number, said)
                self._look_elsewhere()
                self.watcher.tick()
        finally:
            processes.close()

    def _start(self, processes: Processes) -> None:
        for run in list(self.waiting):
            place = self.places.take(run)
            if place is None:
                continue
            self.waiting.remove(run)
            self.running[processes.start(self.job(run, place))] = run, place
            self.watcher.started(run)

    def job(self, run: Run, place: Place) -> dict[str, Any]:
        """What the process of a run is told."""
        halving = self.order.halving
        return {
            "folder": str(self.order.folder),
            "parameters": run.parameters,
            "seed": self.order.seed,
            "about": self.order.about,
            "retry_failed": self.order.retry_failed,
            "halving": halving and halving.terms(),
            "threads": self.places.threads,
            "gpus": [] if place.named else place.gpus,
            "visible": place.visible,
            "current": place.current,
            "share": place.share,
        }

    def _hear(self, processes: Processes, number: int, said: dict[str, Any]) -> None:
        run, place = self.running[number]
        if "disk" in said:
            raise RecordError(said["disk"])
        if "claimed" in said:
            self.claimed.add(number)
        if "epoch" in said:
            figures = lenient(said["epoch"])
            self.watcher.epoch(run, figures)
            if said["asks"] and (halving := self.order.halving):
                verdict = halving.goes_on(run.key, figures["epoch"], figures[halving.watch])
                processes.answer(number, verdict)
        if "code" in said:
            del self.running[number]
            self.places.give_back(place)
            self._ended(run, said["code"], claimed=number in self.claimed)

    def _ended(self, run: Run, code: int, *, claimed: bool) -> None:
        """The record tells how a run ended; where it does not, the exit code does."""
        there = read(self.order.folder, run.key)
        if isinstance(there, Record) and there.finished and code != DISK:
            self.watcher.ended(run, there)
        elif (
            claimed or isinstance(there, Damaged) or (held := self._claim_of_the_dead(run)) is None
        ):
            self.elsewhere.append(run)
        else:
            self.watcher.ended(run, self._crashed(run, there, code))
            held.release()

    def _claim_of_the_dead(self, run: Run) -> Claim | None:
        """A process that dies with its server is still there for a moment."""
        deadline = monotonic() + PATIENCE
        while (held := claim(self.order.folder, run.key)) is None and monotonic() < deadline:
            sleep(0.01)
        return held

    def _crashed(self, run: Run, there: Record | None, code: int) -> Record:
        """Writes down that a run's process ended before the run did."""
        folder, order = self.order.folder, self.order
        there = there or Record(run.key, run.parameters, seed=order.seed, **order.about)
        output = folder_of(folder, run.key) / OUTPUT
        tail = output.read_text("utf-8", "replace")[-TAIL:] if output.exists() else ""
        failed = replace(there, state="failed", error=f"{_how(code)}\n{tail}".strip())
        write(folder, failed)
        return failed

    def _look_elsewhere(self) -> None:
        """Runs that another sweep had: done by now, or left by it."""
        for run in list(self.elsewhere):
            there = read(self.order.folder, run.key)
            if is_claimed(self.order.folder, run.key):
                continue
            self.elsewhere.remove(run)
            if isinstance(there, Record) and there.finished:
                self.watcher.ended(run, there)
            elif not isinstance(there, Damaged):
                self.waiting.append(run)


def left_of(
    folder: Path, runs: Sequence[Run], retry_failed: bool
) -> tuple[list[Run], list[Damaged]]:
    """The runs that are still to be done, and the records that stand in their way."""
    left, damaged = [], []
    for run in runs:
        there = read(folder, run.key)
        if isinstance(there, Damaged):
            damaged.append(there)
        elif again(there, retry_failed):
            left.append(run)
    return left, damaged


def _how(code: int) -> str:
    if code >= 0:
        return f"the run's process ended with exit code {code} before the run did"
    name = signal_name(-code)
    hint = ", as Linux does where memory runs out" if name == "SIGKILL" else ""
    return f"the run's process was killed by {name}{hint}"
