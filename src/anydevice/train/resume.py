"""Going on exactly where a run was interrupted: the same weights, numbers and batches follow."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from anydevice.notices import log
from anydevice.train.callbacks.moments import Callback
from anydevice.train.checkpoint import Checkpoints, asked_to_end, read
from anydevice.train.randomness import random_state, set_random_state

if TYPE_CHECKING:
    from anydevice.train.trial import Trial

TERMINATED = 143  # as a process that died of SIGTERM


class Keeper(Callback):
    """Writes checkpoints, and starts a run from the newest that is there."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self.random: dict[str, Any] = {}
        self.random_of_epoch: dict[str, Any] = {}

    def go_on(self, trial: "Trial") -> None:
        """Takes up the newest checkpoint, if there is one ahead of the trial."""
        newest = self.checkpoints.newest()
        if newest is None or trial.job.step:
            return
        state = read(newest, trial.network)
        trial.set_state(state)
        self.random, self.random_of_epoch = state["random"], state.get("random_of_epoch", {})
        if not self.random_of_epoch:  # kept by Trial.save(), which does not look back
            trial.job.batches = 0
        set_random_state(self.random, trial.device, trial.train_data)
        at = f"epoch {trial.epoch + 1}, step {trial.job.step}"
        log.warning(f"anydevice: going on from {newest} ({at}).")

    def rest(self, batches: Iterable[Any], trial: "Trial") -> Iterable[Any]:
        """The epoch's batches after those that were trained on before the interruption."""
        if not trial.job.batches:
            self.random_of_epoch = random_state(trial.device, trial.train_data)
            return batches
        set_random_state(self.random_of_epoch, trial.device, trial.train_data)
        rest = iter(batches)
        for _ in range(trial.job.batches):
            next(rest, None)
        set_random_state(self.random, trial.device, trial.train_data)
        return rest

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Inside the block SIGTERM ends the run after the step that is under way."""
        self._ending = False

        def end() -> None:
            self._ending = True

        with asked_to_end(end):
            yield

    def on_step(self, trial: "Trial") -> None:  # noqa: D102
        every = self.checkpoints.every
        if self._ending or (every and trial.job.step % every == 0):
            self._write(trial)

    def on_end_epoch(self, trial: "Trial") -> None:  # noqa: D102
        self._write(trial)

    def _write(self, trial: "Trial") -> None:
        state = {**trial.state(), "random_of_epoch": self.random_of_epoch}
        self.random = state["random"]
        self.checkpoints.add(trial.network, state)
        if self._ending:
            raise SystemExit(TERMINATED)
