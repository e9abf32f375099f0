"""Does the runs of a sweep that are not done: several at a time, each in its own process."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

from anydevice.sweep.grid import Run
from anydevice.sweep.processes.driver import Driver, Runs
from anydevice.sweep.processes.worker import DISK, OUTPUT
from anydevice.sweep.records.claims import Claim, claim
from anydevice.sweep.records.records import Damaged, Record, folder_of, is_to_do, read, write
from anydevice.text import signal_name

PATIENCE = 10.0  # seconds
TAIL = 2000  # characters of a crashed run's output that its record keeps
LONGEST = 4  # bytes of a character in UTF-8


class Runner(Driver):
    """Hands out runs to processes until all are done, by this sweep or by another one."""

    worker = "anydevice.sweep.processes.worker"

    def do(self, runs: Iterable[Run]) -> None:
        """Returns when the runs are done."""
        self.work((run,) for run in runs)

    def ended(self, runs: Runs, code: int, *, taken: bool) -> None:
        """The record says how a run ended; where it does not, the exit code does."""
        (run,) = runs
        record = read(self.settings.folder, run.key)
        if isinstance(record, Record) and record.finished and code != DISK:
            self.watcher.ended(run, record)
        elif taken or isinstance(record, Damaged) or (held := self._claim_of_the_dead(run)) is None:
            self.elsewhere.append(run)
        else:
            self.watcher.ended(run, self._crashed(run, record, code))
            held.release()

    def _claim_of_the_dead(self, run: Run) -> Claim | None:
        """A process that dies with its server lives on for a moment, and its claim with it."""
        deadline = monotonic() + PATIENCE
        while (held := claim(self.settings.folder, run.key)) is None and monotonic() < deadline:
            sleep(0.01)
        return held

    def _crashed(self, run: Run, record: Record | None, code: int) -> Record:
        """Writes down that a run's process ended before the run did."""
        folder, settings = self.settings.folder, self.settings
        record = record or Record(run.key, run.parameters, seed=settings.seed, **settings.about)
        why = self.unwritten.get(run.key) or _how(code)
        tail = tail_of(folder_of(folder, run.key) / OUTPUT)
        failed = replace(record, state="failed", error=f"{why}\n{tail}".strip())
        write(folder, failed)
        return failed


def tail_of(output: Path) -> str:
    """The last of what a run has printed, however much that is."""
    if not output.is_file():
        return ""
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - LONGEST * TAIL))
        return file.read(LONGEST * TAIL).decode("utf-8", "replace")[-TAIL:]


def left_of(
    folder: Path, runs: Sequence[Run], retry_failed: bool
) -> tuple[list[Run], list[Damaged]]:
    """The runs that are still to be done, and the damaged records, whose runs cannot be done."""
    left, damaged = [], []
    for run in runs:
        record = read(folder, run.key)
        if isinstance(record, Damaged):
            damaged.append(record)
        elif is_to_do(record, retry_failed):
            left.append(run)
    return left, damaged


def _how(code: int) -> str:
    if code >= 0:
        return f"the run's process ended with exit code {code} before the run did"
    name = signal_name(-code)
    hint = ", as Linux does where memory runs out" if name == "SIGKILL" else ""
    return f"the run's process was killed by {name}{hint}"
