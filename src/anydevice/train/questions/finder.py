"""A learning rate for a trial: the loss while the rate rises step by step, on a copy of it."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from rich.text import Text
from torch import Tensor
from torch.optim import Optimizer

from anydevice.errors import UsageError
from anydevice.tables import Shown, Table
from anydevice.train.history import drawn, plotting
from anydevice.train.loop.loop import Job, train_epoch
from anydevice.train.metrics.metrics import Metrics

if TYPE_CHECKING:
    from anydevice.train.trial import Trial

LOOK = 10  # steps between two looks at the loss, which wait for the device
TOO_MUCH = 4  # times the lowest loss: then it has diverged
SMOOTH = 0.9  # how much of the mean loss stays at each step
ROWS = 12
AROUND = 3  # losses on each side that a slope is of, at least


@dataclass(frozen=True, repr=False)
class FoundRate(Shown):
    """The losses at rising learning rates, and the rate where the loss falls fastest.

    Attributes:
        rate: The rate that is suggested; None if the loss fell nowhere.
        rates: The rate of each step.
        losses: The loss of each step, as a running mean.
    """

    rate: float | None
    rates: Sequence[float]
    losses: Sequence[float]

    def table(self) -> Table:
        """Some of the rates and their losses.

        Example:
            >>> table = trial.find_lr(steps=20).table()
        """
        each = max(1, math.ceil(len(self.rates) / ROWS))
        pairs = list(zip(self.rates, self.losses, strict=True))[::each]
        rows: list[Sequence[str]] = [[f"{rate:.2g}", f"{loss:.4g}"] for rate, loss in pairs]
        return Table(["learning rate", "loss"], rows, right=("learning rate", "loss"))

    def plot(self) -> Any:
        """The loss over the learning rate, with the suggested one.

        Needs the package matplotlib.

        Returns:
            The figure of matplotlib.

        Raises:
            UsageError: If matplotlib is not installed.

        Example:
            >>> figure = trial.find_lr(steps=20).plot()
        """
        figure, panel = plotting().subplots(figsize=(6, 3.5))
        panel.plot(self.rates, self.losses)
        panel.set_xscale("log")
        panel.set_xlabel("learning rate")
        panel.set_ylabel("loss")
        if self.rate is not None:
            line = f"{self.rate:.2g}, where it falls fastest"
            panel.axvline(self.rate, linestyle="--", color="grey", label=line)
            panel.legend(loc="upper left")
        panel.set_ylim(*self._heights())
        return drawn(figure)

    def _heights(self) -> tuple[float, float]:
        """The losses before it diverged, which goes far beyond them."""
        lowest = min(self.losses, default=0.0)
        highest = max(self.losses[: self.losses.index(lowest) + 1], default=1.0)
        room = (highest - lowest) or abs(lowest) or 1.0
        return lowest - 0.1 * room, highest + 0.4 * room

    def _shown(self) -> Iterator[Table | Text]:
        yield self.table()
        said = "The loss fell at no rate: is the data shuffled, and the loss the right one?"
        if self.rate is not None:
            said = f"The loss falls fastest at a learning rate of {self.rate:.2g}."
        yield Text(said)


def find(trial: "Trial", start: float, end: float, steps: int) -> FoundRate:
    """Trains a copy of the trial while the rate rises from `start` to `end`."""
    other = trial.copied()
    optimizer = other.optimizer
    job = other.job
    job.optimizer, job.metrics = optimizer, Metrics([])
    rising = _Rising(job, optimizer, start, end, steps)
    job.after_step = [rising.after_step]
    with other.settings():
        train_epoch(job, islice(_endless(other, rising), steps * job.accumulate))
    return rising.found()


class _Rising:
    """Sets the rate of each step, and keeps the losses on the device."""

    def __init__(self, job: Job, optimizer: Optimizer, start: float, end: float, steps: int):
        self.job, self.optimizer = job, optimizer
        self.start, self.factor = start, (end / start) ** (1 / max(steps - 1, 1))
        first = float(optimizer.param_groups[0]["lr"])
        self.shares = [float(g["lr"]) / first if first else 1.0 for g in optimizer.param_groups]
        self.rates: list[float] = []
        self.kept: list[Tensor] = []
        self.losses: list[float] = []
        self.over = False
        self._set()

    def _set(self) -> None:
        self.rate = self.start * self.factor ** len(self.rates)
        for group, share in zip(self.optimizer.param_groups, self.shares, strict=True):
            group["lr"] = self.rate * share

    def after_step(self) -> None:
        results = self.job.results
        samples = sum(result.size for result in results)
        parts = [result.loss.detach() * (result.size / samples) for result in results]
        self.kept.append(sum(parts[1:], parts[0]))
        self.rates.append(self.rate)
        self._set()
        if len(self.kept) == LOOK:
            self.look()

    def look(self) -> None:
        """Reads the losses since the last look, and whether training has diverged."""
        self.losses += [float(loss) for loss in self.kept]
        self.kept.clear()
        smooth = smoothed(self.losses)
        sound = [loss for loss in smooth if math.isfinite(loss)]
        self.over = len(sound) < len(smooth) or smooth[-1] > TOO_MUCH * min(sound)

    def found(self) -> FoundRate:
        self.look()
        smooth = smoothed(self.losses)
        length = next((i for i, loss in enumerate(smooth) if not math.isfinite(loss)), len(smooth))
        rates, losses = self.rates[:length], smooth[:length]
        return FoundRate(steepest(rates, self.losses[:length]), rates, losses)


def smoothed(losses: Sequence[float]) -> list[float]:
    """Running means, of which the first are of fewer losses."""
    means, mean = [], 0.0
    for place, loss in enumerate(losses, 1):
        mean = SMOOTH * mean + (1 - SMOOTH) * loss
        means.append(mean / (1 - SMOOTH**place))
    return means


def steepest(rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """The rate at which the loss falls fastest, per factor of the rate.

    A slope is that of a line through a sixth of the losses, since batches differ.
    """
    if len(losses) < 2 * AROUND:
        return None
    half = max(AROUND, len(losses) // 12)
    places = range(half, max(half + 1, len(losses) - half))
    slopes = {place: _slope(losses[place - half : place + half + 1]) for place in places}
    best = min(slopes, key=slopes.__getitem__)
    return rates[best] if slopes[best] < 0 else None


def _slope(losses: Sequence[float]) -> float:
    """Of the line that is closest to these losses."""
    middle = (len(losses) - 1) / 2
    return sum((place - middle) * loss for place, loss in enumerate(losses))


def _endless(trial: "Trial", rising: _Rising) -> Iterator[Any]:
    """The training batches over and over, until training has diverged."""
    while True:
        batches: Iterable[Any] = trial.sets.named("train")
        empty = True
        for batch in batches:
            if rising.over:
                return
            yield batch
            empty = False
        if empty:
            raise UsageError("expected batches to train on, got none: is the data empty?")
        trial.sets.epoch += 1
