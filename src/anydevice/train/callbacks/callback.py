"""What happens around the training: a class with methods named after the loop's moments."""

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from anydevice.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from anydevice.train.trial import Trial

MOMENTS = ("on_start", "on_start_epoch", "on_step", "on_end_epoch", "on_end")

SCHEDULERS = (LRScheduler, ReduceLROnPlateau)  # each stands for a Schedule

# What other libraries call these moments.
ELSEWHERE = {
    "on_train_start": "on_start",
    "on_train_begin": "on_start",
    "on_fit_start": "on_start",
    "before_fit": "on_start",
    "on_epoch_start": "on_start_epoch",
    "on_epoch_begin": "on_start_epoch",
    "on_train_epoch_start": "on_start_epoch",
    "before_epoch": "on_start_epoch",
    "on_batch_end": "on_step",
    "on_train_batch_end": "on_step",
    "on_step_end": "on_step",
    "after_batch": "on_step",
    "on_epoch_end": "on_end_epoch",
    "on_train_epoch_end": "on_end_epoch",
    "on_validation_end": "on_end_epoch",
    "on_validation_epoch_end": "on_end_epoch",
    "after_epoch": "on_end_epoch",
    "on_train_end": "on_end",
    "on_fit_end": "on_end",
    "after_fit": "on_end",
}

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


def checked(callbacks: Any) -> list[Any]:
    """The callbacks as a list; a UsageError for what would never be called."""
    if not isinstance(callbacks, (list, tuple)):
        name = type(callbacks).__name__
        raise UsageError(f"expected callbacks as a list, got one {name}: write callbacks=[…].")
    for callback in callbacks:
        _refuse_class_or_function(callback)
        _refuse_strange_moments(callback)
    return list(callbacks)


def _refuse_class_or_function(callback: Any) -> None:
    if isinstance(callback, type):
        name = callback.__name__
        raise UsageError(f"expected callbacks as objects, got the class {name}: write {name}(…).")
    if inspect.isroutine(callback):
        raise UsageError(
            "expected callbacks as objects with methods such as on_end_epoch(trial), got the "
            f"function {callback.__qualname__}: make it a method of a class, and give an object."
        )


def _refuse_strange_moments(callback: Any) -> None:
    """A method that is named like a moment, and is none, would be ignored without a word."""
    kind = type(callback).__name__
    methods = [name for name in dir(type(callback)) if callable(getattr(type(callback), name))]
    strange = [name for name in methods if name.startswith("on_") and name not in MOMENTS]
    strange += [name for name in methods if name in ELSEWHERE and name not in strange]
    for name in strange:
        meant = ELSEWHERE.get(name) or did_you_mean(name, MOMENTS, "", alike=0.85)
        if meant:
            hint = meant if meant.startswith("did") else f"did you mean {meant}?"
            raise UsageError(
                f"expected callbacks with methods among {', '.join(MOMENTS)}, got {kind}.{name}, "
                f"which is never called: {hint}"
            )
    if not (any(name in methods for name in MOMENTS) or isinstance(callback, SCHEDULERS)):
        raise UsageError(
            f"expected callbacks with a method among {', '.join(MOMENTS)}, got {_shown(callback)}, "
            "which has none."
        )


def _shown(callback: Any) -> str:
    """A plain value as it is written; of an object, its class."""
    plain = callback is None or isinstance(callback, (str, int, float, dict, list, tuple))
    return repr(callback) if plain else f"an object of {type(callback).__name__}"


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
