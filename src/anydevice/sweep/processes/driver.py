"""The driver of a sweep: hands out jobs to processes, and acts on what they report."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from anydevice.notices import log
from anydevice.sweep.experiment import Shipped
from anydevice.sweep.grid import Run
from anydevice.sweep.halving import Halving
from anydevice.sweep.processes.messages import (
    DiskFailed,
    Ended,
    Epoch,
    Job,
    Notice,
    Report,
    Resources,
    Taken,
)
from anydevice.sweep.processes.places import Place, Places
from anydevice.sweep.processes.pool import Processes
from anydevice.sweep.records.claims import is_claimed
from anydevice.sweep.records.records import Damaged, Record, RecordError, read

BETWEEN = 0.25  # seconds after which runs that another sweep has are looked at again

Runs = tuple[Run, ...]


class Watcher(Protocol):
    """What shows how the sweep proceeds."""

    def started(self, run: Run) -> None:
        """A run has begun."""

    def epoch(self, run: Run, figures: dict[str, Any]) -> None:
        """An epoch of it is over."""

    def ended(self, run: Run, record: Record) -> None:
        """It has ended, well or not; in this sweep or in another one in the same folder."""

    def tick(self) -> None:
        """Time goes by."""


@dataclass
class Settings:
    """What all runs of one call of Sweep.run have in common."""

    folder: Path
    experiment: Shipped
    about: dict[str, Any]
    seed: int
    retry_failed: bool = False
    halving: Halving | None = None


class Driver(ABC):
    """Does jobs until none is waiting or at work; what follows the end of one is a subclass's."""

    worker: ClassVar[str]  # the module whose main() does a job, in a process

    def __init__(self, settings: Settings, places: Places, watcher: Watcher) -> None:
        self.settings, self.places, self.watcher = settings, places, watcher
        self.waiting: list[Runs] = []
        self.running: dict[int, tuple[Runs, Place]] = {}
        self.taken: set[int] = set()  # the jobs whose run another sweep had first
        self.unwritten: dict[str, str] = {}  # why a run, by its key, could not write its record
        self.elsewhere: list[Run] = []  # runs that another sweep has, for now

    @abstractmethod
    def ended(self, runs: Runs, code: int, *, taken: bool) -> None:
        """The process of these runs has ended, with this exit code."""

    def work(self, jobs: Iterable[Runs]) -> None:
        """Returns when all jobs are done."""
        self.waiting.extend(jobs)
        with closing(Processes(self.worker)) as self.processes:
            while self.waiting or self.running or self.elsewhere:
                self._start()
                for number, report in self.processes.reports(BETWEEN):
                    self._hear(number, report)
                self._look_elsewhere()
                self.watcher.tick()

    def _start(self) -> None:
        for runs in list(self.waiting):
            place = self.places.take(runs[0])
            if place is None:
                continue
            self.waiting.remove(runs)
            self.running[self.processes.start(self._job(runs, place))] = runs, place
            for run in runs:
                self.watcher.started(run)

    def _job(self, runs: Runs, place: Place) -> Job:
        resources = Resources(
            threads=self.places.threads,
            gpus=() if place.named else place.gpus,
            visible=place.visible,
            current=place.current,
            share=place.share,
        )
        return Job(runs, resources=resources, workers=self.places.workers, **vars(self.settings))

    def _hear(self, number: int, report: Report) -> None:
        runs, place = self.running[number]
        match report:
            case DiskFailed(text, own):
                if not own:
                    raise RecordError(text)
                self.unwritten |= {run.key: text for run in runs}
            case Notice(text):
                log.warning(f"anydevice: {text}")
            case Taken():
                self.taken.add(number)
            case Epoch(key, figures, asks):
                self.watcher.epoch(next(run for run in runs if run.key == key), figures)
                if asks and (halving := self.settings.halving):
                    verdict = halving.judge(key, figures["epoch"], figures[halving.watch])
                    self.processes.answer(number, verdict)
            case Ended(_, code):
                del self.running[number]
                self.places.give_back(place)
                self.ended(runs, code, taken=number in self.taken)

    def _look_elsewhere(self) -> None:
        """Runs that another sweep had are done by now, or were left by it."""
        for run in list(self.elsewhere):
            record = read(self.settings.folder, run.key)
            if is_claimed(self.settings.folder, run.key):
                continue
            self.elsewhere.remove(run)
            if isinstance(record, Record) and record.finished:
                self.watcher.ended(run, record)
            elif not isinstance(record, Damaged):
                self.waiting.append((run,))
