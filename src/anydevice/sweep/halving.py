"""Asynchronous successive halving (ASHA): weak runs stop early, without waiting for others."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from anydevice.errors import UsageError
from anydevice.sweep.ranking import badness


@dataclass
class Halving:
    """Which runs continue at each rung: the best of every `factor` that have come so far."""

    watch: str
    first: int = 1
    factor: int = 3
    more: bool | None = None
    rungs: dict[int, dict[str, float]] = field(default_factory=dict)

    def is_rung(self, epoch: int) -> bool:
        """Whether runs are judged after this epoch: after 1, 3, 9, … with the defaults."""
        rung = self.first
        while rung < epoch:
            rung *= self.factor
        return rung == epoch

    def judge(self, key: str, epoch: int, figure: Any) -> bool:
        """Whether this run is good enough, compared with those that came to this rung."""
        rung = self.rungs.setdefault(epoch, {})
        rung[key] = own = badness(self.watch, figure, self.more)
        places = math.ceil(len(rung) / self.factor)
        return math.isfinite(own) and sum(other < own for other in rung.values()) < places

    def afresh(self) -> "Halving":
        """The same, which knows of no run yet."""
        return replace(self, rungs={})

    def terms(self) -> dict[str, Any]:
        """What a run needs to know of it."""
        return {"watch": self.watch, "first": self.first, "factor": self.factor}

    def learn(self, key: str, epochs: Sequence[dict[str, Any]]) -> None:
        """Takes in what a run of an earlier call has reached."""
        for epoch, figures in enumerate(epochs, 1):
            if self.is_rung(epoch) and self.watch in figures:
                self.judge(key, epoch, figures[self.watch])


def halving(
    watch: str = "val_loss", *, first: int = 1, factor: int = 3, best: str | None = None
) -> Halving:
    """Stops weak runs early: of every `factor` runs, the best one continues.

    Runs are compared after `first`, `first * factor`, `first * factor ** 2`, … epochs, each with
    the runs that have come as far. It is for `Sweep.run(stop=...)`.

    Args:
        watch: The figure by which runs are compared.
        first: The first epoch after which they are.
        factor: Of how many runs one continues, and by how much the epochs grow.
        best: "min" or "max". Default: by the name of the figure, "max" for an accuracy.

    Raises:
        UsageError: If `first`, `factor` or `best` is out of range.

    Example:
        >>> halving("accuracy", first=2).is_rung(6)
        True
    """
    if not isinstance(watch, str):
        raise UsageError(f"expected the name of a figure to watch, got {watch!r}.")
    if best not in (None, "min", "max") or first < 1 or factor < 2:
        raise UsageError(
            "expected halving with first of 1 or more, a factor of 2 or more and best as 'min' or "
            f"'max', got first={first}, factor={factor}, best={best!r}."
        )
    return Halving(watch, first, factor, None if best is None else best == "max")
