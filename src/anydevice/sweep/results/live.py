"""What a sweep shows while it runs: a view that is redrawn in a terminal, plain lines elsewhere."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable
from rich.text import Text

from anydevice.sweep.grid import Run
from anydevice.sweep.ranking import badness, compared_by
from anydevice.sweep.records.records import Record, figures_in
from anydevice.tables import printable, show_text
from anydevice.text import duration_text

MOST_SHOWN = 8  # running runs, so that the view stays on the screen


@dataclass
class Progress:
    """How far a sweep has come, for any way to show it."""

    total: int
    workers: int
    done: int = 0  # with the runs that were done before
    failed: int = 0
    running: dict[Run, dict[str, Any]] = field(default_factory=dict)
    best: tuple[str, float, Run] | None = None
    begin: float = field(default_factory=perf_counter)
    ended_here: int = 0
    latest_end: float = 0.0

    def started(self, run: Run) -> None:
        """A run has begun."""
        self.running[run] = {}

    def epoch(self, run: Run, figures: dict[str, Any]) -> None:
        """An epoch of it is over."""
        self.running[run] = figures
        self._compare(run, figures)

    def ended(self, run: Run, record: Record) -> None:
        """It is over."""
        self.running.pop(run, None)
        self.done += 1
        self.ended_here += 1
        self.latest_end = perf_counter()
        self.failed += record.state == "failed"
        self._compare(run, record.last)

    def seconds_left(self) -> float | None:
        """At the pace up to the run that ended last; None before one has ended."""
        if not self.ended_here:
            return None
        pace = (self.latest_end - self.begin) / self.ended_here
        # it falls by one pace at most: a run that takes longer has still to end
        since = min(perf_counter() - self.latest_end, pace)
        return pace * (self.total - self.done) - since

    def ended_text(self) -> str:
        """As in "12 of 24 runs done (1 failed)"."""
        failed = f" ({self.failed} failed)" if self.failed else ""
        return f"{self.done} of {self.total} runs done{failed}"

    def counts(self) -> str:
        """As in "12 of 24 runs done (1 failed), 2 running, about 3 min left"."""
        parts = [self.ended_text()]
        if self.running:
            parts.append(f"{len(self.running)} running")
        left = self.seconds_left()
        if left and self.done < self.total:
            parts.append(f"about {duration_text(left)} left")
        return ", ".join(parts)

    def best_so_far(self) -> str:
        """As in "best so far: accuracy 0.91 (lr=0.1, device=cpu)"."""
        return (
            f"best so far: {self.best[0]} {self.best[1]:.4g} ({self.best[2]})" if self.best else ""
        )

    def _compare(self, run: Run, figures: Mapping[str, Any]) -> None:
        name = compared_by(figures_in(figures))
        if name is None:
            return
        if self.best is None or badness(name, figures[name]) < badness(self.best[0], self.best[1]):
            self.best = name, figures[name], run


class Lines:
    """Prints a line for each run as it ends."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def started(self, run: Run) -> None:  # noqa: D102
        self.progress.started(run)

    def epoch(self, run: Run, figures: dict[str, Any]) -> None:  # noqa: D102
        self.progress.epoch(run, figures)

    def ended(self, run: Run, record: Record) -> None:  # noqa: D102
        self.progress.ended(run, record)
        show_text(f"{self.progress.done}/{self.progress.total}  {line_of(run, record)}")
        sys.stdout.flush()

    def tick(self) -> None:  # noqa: D102
        pass


class View(Lines):
    """The same in a terminal: runs that have ended scroll by above those at work."""

    def __init__(self, progress: Progress, live: Live) -> None:
        super().__init__(progress)
        self.live = live

    def ended(self, run: Run, record: Record) -> None:  # noqa: D102
        self.progress.ended(run, record)
        self.live.console.print(Text(line_of(run, record), overflow="ellipsis", no_wrap=True))

    def tick(self) -> None:  # noqa: D102
        self.live.update(picture(self.progress), refresh=True)


def picture(progress: Progress) -> RenderableType:
    """The view: a bar, the counts, the best so far, and what runs."""
    bar = RichTable.grid(padding=(0, 1))
    bar.add_row(
        ProgressBar(progress.total, progress.done, width=16), Text(progress.counts(), no_wrap=True)
    )
    lines: list[RenderableType] = [bar]
    if progress.best:
        best = progress.best_so_far()
        lines.append(Text(best, style="bold", overflow="ellipsis", no_wrap=True))
    for run, figures in list(progress.running.items())[:MOST_SHOWN]:
        line = f"  {run}  {_figures_text(figures)}".rstrip()
        lines.append(Text(line, style="dim", overflow="ellipsis", no_wrap=True))
    return Group(*lines)


@contextmanager
def watching(
    folder: Path, runs: Sequence[Run], left: Sequence[Run], workers: int, verbose: bool
) -> Iterator[Lines]:
    """What shows the sweep as it proceeds, and sums it up at the end."""
    progress = Progress(len(runs), workers, done=len(runs) - len(left))
    if not verbose:
        yield Silent(progress)
        return
    before = f", {progress.done} done before" if progress.done else ""
    at_once = f", {workers} at a time" if workers > 1 else ""
    show_text(f"{len(runs)} runs in {folder}{before}{at_once}")
    console = Console()
    try:
        if console.is_terminal and not console.is_jupyter:
            with Live(console=console, auto_refresh=False, transient=True) as live:
                yield View(progress, live)
        else:
            yield Lines(progress)
    finally:
        _sum_up(progress, interrupted=progress.done < progress.total)


class Silent(Lines):
    """Shows nothing."""

    def ended(self, run: Run, record: Record) -> None:  # noqa: D102
        self.progress.ended(run, record)


def line_of(run: Run, record: Record) -> str:
    """How a run ended, in one line."""
    seconds = "" if record.seconds is None else duration_text(record.seconds)
    if record.state == "failed":
        return printable(f"{run}  failed{seconds and f' after {seconds}'}: {record.reason}")
    stopped = f"stopped after epoch {len(record.epochs)}" if record.state == "stopped" else ""
    parts = (str(run), _figures_text(record.last), seconds, stopped)
    return printable("  ".join(part for part in parts if part))


def _sum_up(progress: Progress, interrupted: bool) -> None:
    if interrupted:
        show_text(f"interrupted: {progress.ended_text()}; the same call resumes")
    else:
        failed = f", {progress.failed} failed" if progress.failed else ""
        took = duration_text(perf_counter() - progress.begin)
        best = progress.best_so_far().replace("best so far", "best")
        show_text(f"{progress.total} runs done in {took}{failed}; {best}".rstrip("; "))
    sys.stdout.flush()


def _figures_text(record: Mapping[str, Any]) -> str:
    figures = "  ".join(f"{name} {record[name]:.4g}" for name in figures_in(record))
    return f"epoch {record['epoch']}  {figures}" if figures and "epoch" in record else figures
