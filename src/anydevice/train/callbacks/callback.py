"""What happens around the training: a class with methods named after the loop's moments."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anydevice.train.trial import Trial

MOMENTS = ("on_start", "on_start_epoch", "on_step", "on_end_epoch", "on_end")

# Callbacks of every trial of this process, such as the record of a sweep's run.
everywhere: list[Any] = []


class Callback:
    """Override what you need; each method gets the trial.

    An error in a method ends the run, and says which callback raised it.

    Attributes:
        on_every_rank: With several processes, whether it runs on each; else on the first alone.

    Example:
        >>> class Shout(Callback):
        ...     def on_end_epoch(self, trial):
        ...         print("epoch", trial.epoch)
        >>> trial = ad.Trial(network, "adam", "cross_entropy", callbacks=[Shout()])
        >>> history = trial.with_generators((x, y)).run(epochs=1, verbose=False)
        epoch 1
    """

    on_every_rank = True

    def on_start(self, trial: "Trial") -> None:
        """Before the first epoch of a run."""

    def on_start_epoch(self, trial: "Trial") -> None:
        """Before an epoch's first batch."""

    def on_step(self, trial: "Trial") -> None:
        """After a step of the optimizer. Reading a value from the device here waits for it."""

    def on_end_epoch(self, trial: "Trial") -> None:
        """After an epoch and its validation; `trial.history[-1]` has its record."""

    def on_end(self, trial: "Trial") -> None:
        """After the last epoch, also of a run that was stopped or failed."""


def reactions(callbacks: Sequence[Any], trial: "Trial") -> dict[str, Callable[[], None]]:
    """For each moment, a function that calls the callbacks with a method for it."""
    return {moment: _reaction(callbacks, moment, trial) for moment in MOMENTS}


def listeners(callbacks: Sequence[Any], moment: str) -> list[Any]:
    """The callbacks that do something at this moment."""
    idle = getattr(Callback, moment)
    return [c for c in callbacks if getattr(type(c), moment, idle) is not idle]


def _reaction(callbacks: Sequence[Any], moment: str, trial: "Trial") -> Callable[[], None]:
    called = [(getattr(c, moment), type(c).__name__) for c in listeners(callbacks, moment)]

    def react() -> None:
        for method, name in called:
            try:
                method(trial)
            except Exception as error:
                error.add_note(f"raised in the callback {name}.{moment}, epoch {trial.epoch + 1}")
                raise

    return react
