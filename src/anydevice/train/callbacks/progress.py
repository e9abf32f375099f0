"""How far the training is: a bar in a terminal or notebook, and a line an epoch everywhere."""

import sys
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from anydevice.tables import show_text
from anydevice.train.callbacks.callback import Callback
from anydevice.train.history import is_health

if TYPE_CHECKING:
    from anydevice.train.trial import Trial

BETWEEN = 0.1  # seconds between two looks of the bar


class Progress(Callback):
    """A bar in a terminal or notebook while an epoch trains, then a line with its record.

    `Trial.run` adds one unless `verbose=False`.

    Args:
        console: Where the bar is shown.

    Example:
        >>> progress = Progress()
    """

    on_every_rank = False

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self._bar: Bar | None = None
        self._shown = 0.0

    def on_start_epoch(self, trial: "Trial") -> None:  # noqa: D102
        if not (self.console.is_terminal or self.console.is_jupyter):
            return
        parts = (TextColumn("epoch {task.fields[epoch]}"), BarColumn(), MofNCompleteColumn())
        self._bar = Bar(*parts, TimeRemainingColumn(), console=self.console, transient=True)
        try:
            total = len(trial.sets.named("train"))  # type: ignore[arg-type]
        except TypeError:  # as many as come
            total = None
        self._bar.add_task("train", total=total, epoch=trial.epoch + 1)
        self._bar.start()

    def on_step(self, trial: "Trial") -> None:  # noqa: D102
        if self._bar and perf_counter() - self._shown > BETWEEN:
            self._bar.update(self._bar.task_ids[0], completed=trial.job.batches)
            self._shown = perf_counter()

    def on_end_epoch(self, trial: "Trial") -> None:  # noqa: D102
        self.on_end(trial)
        show_text(line_of(trial.history[-1]))
        sys.stdout.flush()

    def on_end(self, trial: "Trial") -> None:  # noqa: D102
        if self._bar:
            self._bar.stop()
            self._bar = None


def line_of(record: dict[str, Any]) -> str:
    """A record's metrics in one line: "epoch 1  loss 0.6931  seconds 1.2"."""
    return "  ".join(
        f"{name} {figure:.4g}" if isinstance(figure, float) else f"{name} {figure}"
        for name, figure in record.items()
        if name == "seconds" or not is_health(name)
    )
