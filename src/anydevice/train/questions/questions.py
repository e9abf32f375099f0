"""What a trial can be asked besides its metrics: its layers, a learning rate, where it errs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from torch.nn.parameter import is_lazy

from anydevice.errors import UsageError, names_checked
from anydevice.text import counted
from anydevice.train.data.random_state import random_state, set_random_state
from anydevice.train.loop.forward import answer, forward_of
from anydevice.train.loop.job import first_batch, initialise_lazy
from anydevice.train.ranks import together

if TYPE_CHECKING:
    from anydevice.train.questions.answers import ConfusionTable, Worst
    from anydevice.train.questions.finder import FoundRate
    from anydevice.train.questions.summary import Summary
    from anydevice.train.trial import Trial

FEWEST = 10  # steps to find a learning rate by


class Questions:
    """The part of a `Trial` that answers about it and leaves it as it is."""

    @names_checked
    def summary(self, example: Any = None, *, depth: int = 3) -> "Summary":
        """What the network consists of: layers, shapes, parameters, FLOPs, memory, devices.

        Nothing is computed, and the trial stays as it is. The memory has the optimizer's state.

        Args:
            example: A batch; without it, the first of the training data, if there are any.
            depth: How deep the table goes into modules of modules.

        Returns:
            The summary; print it, or read its attributes.

        Raises:
            UsageError: If the depth is below 1, the network is sharded, or its shapes depend on
                values.

        Example:
            >>> trial.summary(x).parameters
            15
        """
        from anydevice.train.questions.summary import summarised

        trial = cast("Trial", self)
        if trial.is_sharded:
            raise UsageError(
                "expected a whole network for a summary, got one that is sharded: ask for it "
                "before the run."
            )
        if example is None and "train" in trial.sets.given:
            _refuse_spent_by_looking(trial.train_data)
            with untouched(trial):
                example = first_batch(trial)
        step = None if trial.recipe.has_own_steps else trial.recipe.step
        return summarised(
            trial.network,
            example,
            depth=depth,
            optimizer=trial.optimizer_like,
            call=forward_of(None, step) if step else answer,
            autocast=trial.precision.autocast,
            about=repr(trial),
        )

    @names_checked
    def find_lr(self, start: float = 1e-7, end: float = 10.0, *, steps: int = 100) -> "FoundRate":
        """Trains a copy while the learning rate rises, and says where the loss falls fastest.

        The trial stays as it is: weights, optimizer, history, random state and the order of its
        samples. The groups of the optimizer keep the ratios of their rates.

        Args:
            start: The rate of the first step.
            end: The rate of the last step; training ends before if the loss has diverged.
            steps: How many steps to make.

        Returns:
            The rates, the losses and a suggestion; print it, or `.plot()` it.

        Raises:
            UsageError: If the rates do not rise, there are fewer than 10 steps or no training data,
                or several processes train.

        Example:
            >>> found = trial.find_lr(steps=50)
            >>> len(found.rates) <= 50
            True
        """
        from anydevice.train.questions.finder import find

        trial = cast("Trial", self)
        if not all(isinstance(rate, (int, float)) for rate in (start, end)) or not 0 < start < end:
            raise UsageError(f"expected rates that rise from above 0, got {start!r} to {end!r}.")
        if not isinstance(steps, int) or steps < FEWEST:
            raise UsageError(f"expected {FEWEST} steps or more, got {steps!r}.")
        if together() and trial.options.strategy != "alone":
            raise UsageError("expected one process to find a learning rate in, got several ranks.")
        _refuse_spent_by_looking(trial.train_data)
        with untouched(trial):
            return find(trial, float(start), float(end), steps)

    @names_checked
    def confusion(
        self, data: Any = None, *, names: Sequence[str] | None = None, batch_size: int = 1000
    ) -> "ConfusionTable":
        """How often each class is taken for each.

        Args:
            data: The data; without it, the validation data of the trial, or else its test data.
            names: The names of the classes.
            batch_size: The size of a batch, for data that comes without batches.

        Returns:
            The counts, a row for each target; print it, `.plot()` it, or read its `.matrix`.

        Raises:
            UsageError: If the outputs are not of classes, there is no data, or the names are more
                or fewer than the classes.

        Example:
            >>> trial.confusion((x, y)).matrix.shape
            torch.Size([3, 3])
        """
        from anydevice.train.questions.answers import confusion

        trial = cast("Trial", self)
        with trial.settings():
            return confusion(trial, _batches_to_ask(trial, data, batch_size), names)

    @names_checked
    def worst(self, data: Any = None, *, number: int = 10, batch_size: int = 1000) -> "Worst":
        """The samples with the largest losses.

        Args:
            data: The data; without it, the validation data of the trial, or else its test data.
            number: How many samples.
            batch_size: The size of a batch, for data that comes without batches.

        Returns:
            A list, the worst first: `index`, `loss`, `target`, `answer` and `inputs` of each.

        Raises:
            UsageError: If the number is below 1, there is no data, or the trial has no own loss.

        Example:
            >>> [each.index for each in trial.worst((x, y), number=2)]
            [..., ...]
        """
        from anydevice.train.questions.answers import worst

        trial = cast("Trial", self)
        if not isinstance(number, int) or number < 1:
            raise UsageError(f"expected a number of 1 or more samples, got {number!r}.")
        with trial.settings():
            return worst(trial, _batches_to_ask(trial, data, batch_size), number)

    def __repr__(self) -> str:
        """A short form: network, parameters, optimizer, loss, device, and how far it is."""
        trial = cast("Trial", self)
        count = sum(p.numel() for p in trial.network.parameters() if not is_lazy(p))
        optimizer, loss = trial.optimizer_like, trial.recipe.loss
        precision = trial.precision.name
        parts = [
            f"{type(trial.network).__name__} with {counted(count, 'parameter')}",
            *([_name_of(optimizer)] if optimizer is not None else []),
            *([_name_of(loss)] if loss is not None else []),
            f"{trial.device}" + (f" in {precision}" if precision != "fp32" else ""),
            counted(trial.epoch, "epoch"),
        ]
        if trial.history:
            last = trial.history[-1]
            shown = [n for n in ("loss", "accuracy", "val_loss", "val_accuracy") if n in last]
            parts += [f"{name} {last[name]:.4g}" for name in shown]
        return f"Trial({', '.join(parts)})"


@contextmanager
def untouched(trial: "Trial") -> Iterator[None]:
    """What is drawn at random inside the block is drawn again after it."""
    random, sets = random_state(trial.device, trial.train_data), trial.sets
    seed, epoch = sets.seed, sets.epoch
    try:
        yield
    finally:
        sets.seed, sets.epoch = seed, epoch
        set_random_state(random, trial.device, trial.train_data)


def _batches_to_ask(trial: "Trial", data: Any, batch_size: int) -> Any:
    if together() and trial.options.strategy != "alone":
        raise UsageError("expected one process to ask for single samples, got several ranks.")
    initialise_lazy(trial)
    if data is not None:
        return trial.sets.over(data, batch_size)
    return trial.sets.named("val" if "val" in trial.sets.given else "test")


def _refuse_spent_by_looking(data: Any) -> None:
    if isinstance(data, Iterator):
        raise UsageError(
            f"expected training data that can be looked at twice, got a {type(data).__name__}: "
            "give an example batch."
        )


def _name_of(given: Any) -> str:
    """An optimizer or a loss by its name."""
    if isinstance(given, str):
        return given
    return str(getattr(given, "__name__", type(given).__name__))
