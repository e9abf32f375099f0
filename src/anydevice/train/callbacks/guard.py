"""A loss that is not finite ends the run, with the batch that made it so."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from anydevice.files import write_whole
from anydevice.train.callbacks.callback import Callback

if TYPE_CHECKING:
    from anydevice.train.trial import Trial

NEVER = 2**62


class NotFiniteError(ArithmeticError):
    """The loss became NaN or infinite."""


class NanGuard(Callback):
    """Ends the run at a loss that is NaN or infinite, and names the batch.

    Losses are noted on the device, so that nothing waits for it but a look every `every` steps.

    Args:
        every: After how many steps to look.
        path: A JSON file for the numbers of epoch and batch.

    Raises:
        NotFiniteError: If a loss was not finite.

    Example:
        >>> guard = NanGuard(every=50)
    """

    def __init__(self, every: int = 100, path: str | Path | None = None) -> None:
        self.every, self.path = every, path
        self._first: Tensor | None = None

    def on_step(self, trial: "Trial") -> None:  # noqa: D102
        job = trial.job
        for result in job.results:
            loss = result.loss.detach()
            if self._first is None or self._first.device != loss.device:
                self._first = torch.full((), NEVER, device=loss.device)
            bad = torch.where(loss.isfinite(), NEVER, job.batches)
            self._first = torch.minimum(self._first, bad)
        if job.step % self.every == 0:
            self._look(trial)

    def on_end_epoch(self, trial: "Trial") -> None:  # noqa: D102
        self._look(trial, done=1)
        self._first = None

    def _look(self, trial: "Trial", done: int = 0) -> None:
        first = NEVER if self._first is None else int(self._first)
        if first == NEVER:
            return
        epoch = trial.epoch + 1 - done
        if self.path:
            write_whole(Path(self.path), f'{{"epoch": {epoch}, "batch": {first}}}\n'.encode())
        raise NotFiniteError(
            f"expected finite losses, got NaN or infinity at batch {first} of epoch {epoch}: lower "
            "the learning rate, clip the gradients, or look at that batch."
        )
