"""Averages of weights over the steps: validation, and the end of the run, are with them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anydevice.errors import UsageError
from anydevice.train.callbacks.callback import Callback

if TYPE_CHECKING:
    from anydevice.train.trial import Trial


class Averaging(Callback):
    """Keeps an average of the weights; the validation data is measured with it."""

    def __init__(self, keep: bool) -> None:
        self.keep = keep
        self.count = 0  # of the weights that the average is of
        self._average: list[Tensor] = []
        self._own: list[Tensor] = []  # of the network, while it has the average after a run

    def on_start(self, trial: "Trial") -> None:  # noqa: D102
        if trial.is_sharded:
            raise UsageError(
                f"expected a whole network for {type(self).__name__}, got one that is sharded by "
                'strategy="fsdp": use strategy="ddp".'
            )
        weights = _weights(trial)
        _copy(weights, self._own)
        self._own = []
        self._average = [a.to(w) for a, w in zip(self._average, weights, strict=False)]

    @contextmanager
    def measuring(self, trial: "Trial") -> Iterator[None]:
        """Inside the block the network has the average, if there is one."""
        if not self.count or self._own:
            yield
            return
        weights = _weights(trial)
        own = [weight.clone() for weight in weights]
        _copy(weights, self._average)
        try:
            yield
        finally:
            _copy(weights, own)

    def on_end(self, trial: "Trial") -> None:  # noqa: D102
        finished = trial.epoch >= trial.epochs or trial.stopped
        if self.keep and self.count and finished:
            weights = _weights(trial)
            self._own = [weight.clone() for weight in weights]
            _copy(weights, self._average)

    @torch.no_grad()
    def add(self, trial: "Trial", share: float) -> None:
        """Takes in the weights of this moment: so much of them, and less of what was before."""
        weights = _weights(trial)
        if self.count:
            torch._foreach_lerp_(self._average, weights, share)
        else:
            self._average = [weight.clone() for weight in weights]
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"count": self.count, "average": [*self._average]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from there."""
        self.count, self._average = state["count"], [*state["average"]]


class EMA(Averaging):
    """An exponential moving average of the weights, which the network has after the run.

    The validation figures are of the average; training continues with the weights themselves. A
    step costs one pass over the weights more.

    Args:
        decay: How much of the average stays at each step. The first steps take less of it, so that
            the average is not held back by the weights of the start.
        keep: Whether the network has the average after the run.

    Raises:
        UsageError: If the decay is not between 0 and 1, or, in the run, the network is sharded.

    Example:
        >>> average = ad.callbacks.EMA(0.999)
        >>> trial = ad.Trial(network, "adam", "cross_entropy", callbacks=[average])
    """

    def __init__(self, decay: float = 0.999, keep: bool = True) -> None:
        if not isinstance(decay, (int, float)) or not 0 < decay < 1:
            raise UsageError(f"expected a decay between 0 and 1, got {decay!r}.")
        super().__init__(keep)
        self.decay = decay

    def on_step(self, trial: "Trial") -> None:  # noqa: D102
        decay = min(self.decay, (1 + self.count) / (10 + self.count))
        self.add(trial, 1 - decay)


class SWA(Averaging):
    """Stochastic weight averaging: the mean of the weights at the ends of the last epochs.

    After the run the network has the mean, of batch norm's statistics too. It is usual to train
    these epochs at a constant, high learning rate.

    Args:
        start: From which epoch on: a share of the run such as 0.75, or the number of an epoch.
        keep: Whether the network has the mean after the run.

    Raises:
        UsageError: If the start is neither, or, in the run, the network is sharded.

    Example:
        >>> mean = ad.callbacks.SWA(start=0.75)
        >>> trial = ad.Trial(network, "sgd", "cross_entropy", callbacks=[mean])
    """

    def __init__(self, start: float = 0.75, keep: bool = True) -> None:
        whole = isinstance(start, int) and not isinstance(start, bool) and start >= 1
        if not whole and not (isinstance(start, float) and 0 <= start < 1):
            raise UsageError(
                "expected the start as a share of the run from 0 to 1, or as an epoch from 1 on, "
                f"got {start!r}."
            )
        super().__init__(keep)
        self.start = start

    def on_end_epoch(self, trial: "Trial") -> None:  # noqa: D102
        share = not isinstance(self.start, int)
        first = int(self.start * trial.epochs) + 1 if share else self.start
        if trial.epoch >= first:
            self.add(trial, 1 / (self.count + 1))


@contextmanager
def averaged(trial: "Trial") -> Iterator[None]:
    """Inside the block the network has the weights that validation is to be measured with."""
    with ExitStack() as stack:
        for callback in trial.callbacks:
            if isinstance(callback, Averaging):
                stack.enter_context(callback.measuring(trial))
        yield


def _weights(trial: "Trial") -> list[Tensor]:
    """The parameters that train, and the statistics of batch norm that are numbers."""
    network = trial.network
    buffers = (b for b in network.buffers() if b.is_floating_point())
    return [*(p.detach() for p in network.parameters()), *buffers]


@torch.no_grad()
def _copy(to: list[Tensor], source: list[Tensor]) -> None:
    if to and source:
        torch._foreach_copy_(to, source)
