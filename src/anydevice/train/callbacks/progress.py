"""How far the training is: a bar in a terminal or notebook, and a line an epoch everywhere."""

import math
import sys
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.live import Live
from rich.text import Text
from torch import Tensor

from anydevice.tables import show_text
from anydevice.train.callbacks.callback import Callback
from anydevice.train.history import is_health

if TYPE_CHECKING:
    from anydevice.train.trial import Trial

BETWEEN = 0.1  # seconds between two pictures of the bar
BAR = 20  # characters, or fewer in a narrow terminal
TEXT = 56  # of the loss, the speed and the time in the same line


class Progress(Callback):
    """A bar in a terminal or notebook while an epoch trains, then a line with its record.

    The bar is `epoch 3/10 ━━━━━╸ 27/40 loss 0.41 it/s 12.1 eta 0:25`: the batches of the epoch, the
    loss of a step just before, the batches a second, and the time until the run ends. It is drawn
    at most ten times a second and never waits for the device. `Trial.run` adds one unless
    `verbose=False`.

    Args:
        console: Where the bar is shown.

    Example:
        >>> progress = Progress()
    """

    on_every_rank = False

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self._bar: _Drawn | None = None
        self._total: int | None = None
        self._drawn = self._began = 0.0
        self._first = 0  # batches that were done before this process took up the epoch
        self._glimpse = Glimpse()

    def on_start_epoch(self, trial: "Trial") -> None:  # noqa: D102
        if not (self.console.is_terminal or self.console.is_jupyter):
            return
        try:
            self._total = len(trial.sets.named("train"))  # type: ignore[arg-type]
        except TypeError:  # as many as come
            self._total = None
        self._began, self._first = perf_counter(), trial.job.batches
        self._bar = _InNotebook() if self.console.is_jupyter else _InTerminal(self.console)
        self._draw(trial)

    def on_step(self, trial: "Trial") -> None:  # noqa: D102
        if self._bar and perf_counter() - self._drawn > BETWEEN:
            self._glimpse.look(trial.job.results)
            self._draw(trial)

    def on_end_epoch(self, trial: "Trial") -> None:  # noqa: D102
        self.on_end(trial)
        show_text(line_of(trial.history[-1], trial.epochs))
        sys.stdout.flush()

    def on_end(self, trial: "Trial") -> None:  # noqa: D102
        if self._bar:
            self._bar.end()
            self._bar = None
            self._glimpse = Glimpse()

    def _draw(self, trial: "Trial") -> None:
        assert self._bar
        done, seconds = trial.job.batches, perf_counter() - self._began
        rate = (done - self._first) / seconds if done > self._first else 0.0
        line = [f"epoch {trial.epoch + 1}/{trial.epochs}", *self._part(done)]
        if self._glimpse.loss is not None:
            line.append(f"loss {self._glimpse.loss:.4g}")
        if rate:
            line.append(f"it/s {rate:.3g}" if rate < 1000 else f"it/s {rate:.0f}")
            line.append(f"eta {clock(self._left(trial, done, rate))}")
        self._bar.draw(" ".join(line))
        self._drawn = perf_counter()

    def _part(self, done: int) -> list[str]:
        if self._total is None:
            return [f"{done}/?"]
        width = max(0, min(BAR, self.console.width - TEXT))
        drawn = bar(done / max(self._total, 1), width)
        return [*([drawn] if width else []), f"{done}/{self._total}"]

    def _left(self, trial: "Trial", done: int, rate: float) -> float | None:
        """Seconds until the run ends: in this epoch, and in the epochs after it."""
        if self._total is None:
            return None
        after = trial.epochs - trial.epoch - 1
        each = trial.history[-1]["seconds"] if trial.history else self._total / rate
        return max(self._total - done, 0) / rate + after * float(each)


class Glimpse:
    """A loss that was computed a moment ago, read without waiting for the device."""

    def __init__(self) -> None:
        self.loss: float | None = None
        self._copy: Tensor | None = None
        self._arrived: Callable[[], bool] = bool

    def look(self, results: list[Any]) -> None:
        """Take what has arrived since the last look, and send for this step's loss."""
        if self._copy is not None:
            if not self._arrived():
                return
            self.loss, self._copy = float(self._copy), None
        if not results:
            return
        loss = results[-1].loss.detach()
        if loss.device.type == "cpu":
            self.loss = float(loss)
        elif loss.device.type != "meta":
            self._copy = torch.empty((), dtype=loss.dtype, pin_memory=True)
            self._copy.copy_(loss, non_blocking=True)
            event = torch.Event(loss.device)
            event.record()
            self._arrived = event.query


class _Drawn:
    """A line that is drawn over and over."""

    def draw(self, line: str) -> None:
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError


class _InTerminal(_Drawn):
    """What is printed meanwhile goes above the line."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def draw(self, line: str) -> None:
        text = Text(line, no_wrap=True, overflow="ellipsis")
        place = line.find("━"), max(line.rfind("━"), line.rfind("╸")) + 1
        if place[0] >= 0:
            text.stylize("bar.complete", *place)
        self._live.update(text, refresh=True)

    def end(self) -> None:
        self._live.stop()


class _InNotebook(_Drawn):
    """One output of the cell, which is empty once the epoch is over."""

    def __init__(self) -> None:
        from IPython.display import display

        self._handle = display({"text/plain": ""}, raw=True, display_id=True)

    def draw(self, line: str) -> None:
        self._handle.update({"text/plain": line}, raw=True)

    def end(self) -> None:
        self._handle.update({"text/plain": ""}, raw=True)


def bar(share: float, width: int = BAR) -> str:
    """So much of a bar, with spaces for what is left: `bar(0.125) == "━━╸" + 17 * " "`."""
    halves = round(2 * width * min(max(share, 0.0), 1.0))
    return ("━" * (halves // 2) + "╸" * (halves % 2)).ljust(width)


def clock(seconds: float | None) -> str:
    """A duration as on a clock: `clock(25) == "0:25"`, `clock(3725) == "1:02:05"`."""
    if seconds is None or not math.isfinite(seconds):
        return "?"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def line_of(record: dict[str, Any], epochs: int | None = None) -> str:
    """A record's metrics in one line: "epoch 1/10  loss 0.6931  seconds 1.2"."""
    shown = {
        name: f"{figure:.4g}" if isinstance(figure, float) else f"{figure}"
        for name, figure in record.items()
        if isinstance(figure, (int, float)) and (name == "seconds" or not is_health(name))
    }
    if epochs and "epoch" in shown:
        shown["epoch"] += f"/{epochs}"
    return "  ".join(f"{name} {figure}" for name, figure in shown.items())
