"""A trial's methods under the names of others: torchbearer's, Lightning's and d2l's."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from torch import Tensor

from anydevice.errors import UsageError, names_checked
from anydevice.tables import show_text
from anydevice.train.callbacks.callback import checked, reactions
from anydevice.train.callbacks.progress import line_of
from anydevice.train.history import History

if TYPE_CHECKING:
    from anydevice.train.trial import Trial


class Forms:
    """The part of a `Trial` that programs written for other libraries call."""

    # ---- torchbearer ----

    def with_train_generator(self, generator: Any, steps: int | None = None) -> Self:
        """The training data alone, as `with_generators(train=generator)`."""
        return self._given("train", generator, steps)

    def with_val_generator(self, generator: Any, steps: int | None = None) -> Self:
        """The validation data alone, as `with_generators(val=generator)`."""
        return self._given("val", generator, steps)

    def with_test_generator(self, generator: Any, steps: int | None = None) -> Self:
        """The test data alone, as `with_generators(test=generator)`."""
        return self._given("test", generator, steps)

    @names_checked
    def with_train_data(
        self,
        x: Tensor,
        y: Tensor,
        batch_size: int = 1,
        shuffle: bool = True,
        num_workers: int = 1,
        steps: int | None = None,
    ) -> Self:
        """Tensors to train on.

        Args:
            x: The inputs.
            y: The targets.
            batch_size: The size of a batch.
            shuffle: Whether each epoch draws a new order.
            num_workers: Of no effect: tensors need no workers.
            steps: The batches of an epoch; see `for_steps`.

        Example:
            >>> trial = trial.with_train_data(x, y, batch_size=10)
        """
        return self._given("train", (x, y), steps, batch_size=batch_size, shuffle=shuffle)

    @names_checked
    def with_val_data(
        self,
        x: Tensor,
        y: Tensor,
        batch_size: int = 1,
        shuffle: bool = True,
        num_workers: int = 1,
        steps: int | None = None,
    ) -> Self:
        """Tensors to measure on; as `with_train_data`, and in their own order."""
        return self._given("val", (x, y), steps, batch_size=batch_size)

    @names_checked
    def with_test_data(
        self, x: Tensor, batch_size: int = 1, num_workers: int = 1, steps: int | None = None
    ) -> Self:
        """Inputs for `predict()`; as `with_train_data`, without targets."""
        return self._given("test", x, steps, batch_size=batch_size)

    @names_checked
    def with_data(
        self,
        x_train: Tensor | None = None,
        y_train: Tensor | None = None,
        x_val: Tensor | None = None,
        y_val: Tensor | None = None,
        x_test: Tensor | None = None,
        batch_size: int = 1,
        num_workers: int = 1,
        train_steps: int | None = None,
        val_steps: int | None = None,
        test_steps: int | None = None,
        shuffle: bool = True,
    ) -> Self:
        """Tensors to train on, to measure on and to predict; see `with_train_data`."""
        if x_train is not None and y_train is not None:
            self.with_train_data(x_train, y_train, batch_size, shuffle)
        if x_val is not None and y_val is not None:
            self.with_val_data(x_val, y_val, batch_size)
        if x_test is not None:
            self.with_test_data(x_test, batch_size)
        return self.for_steps(train_steps, val_steps, test_steps)

    @names_checked
    def for_steps(
        self,
        train_steps: int | None = None,
        val_steps: int | None = None,
        test_steps: int | None = None,
    ) -> Self:
        """How many batches a pass over a set has: fewer than there are, or some again.

        Args:
            train_steps: Of an epoch.
            val_steps: Of the validation after it.
            test_steps: Of the test data.

        Raises:
            UsageError: If a number is below 1.

        Example:
            >>> trial = trial.for_steps(train_steps=2)
            >>> trial.run(epochs=1, verbose=False)[0]["epoch"]
            1
        """
        given = {"train": train_steps, "val": val_steps, "test": test_steps}
        for name, steps in given.items():
            if steps is not None:
                if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
                    raise UsageError(f"expected 1 or more {name} steps, got {steps!r}.")
                self._trial.sets.limit(name, steps)
        return self

    def for_train_steps(self, steps: int) -> Self:
        """As `for_steps(train_steps=steps)`."""
        return self.for_steps(train_steps=steps)

    def for_val_steps(self, steps: int) -> Self:
        """As `for_steps(val_steps=steps)`."""
        return self.for_steps(val_steps=steps)

    def for_test_steps(self, steps: int) -> Self:
        """As `for_steps(test_steps=steps)`."""
        return self.for_steps(test_steps=steps)

    def train(self) -> Self:
        """The network in training mode; `run` and `evaluate` set the mode that they need."""
        self._trial.network.train()
        return self

    def eval(self) -> Self:
        """The network in evaluation mode; `run` and `evaluate` set the mode that they need."""
        self._trial.network.eval()
        return self

    @names_checked
    def replay(self, callbacks: Sequence[Any] | None = None, verbose: bool | int = True) -> History:
        """Goes through the history again, for callbacks that write or draw it; nothing is trained.

        Args:
            callbacks: Whose `on_start`, `on_start_epoch`, `on_end_epoch` and `on_end` are called;
                without them, those of the trial.
            verbose: Whether to show a line for each epoch.

        Example:
            >>> history = trial.replay([ad.callbacks.CSV(folder / "again.csv")], verbose=False)
        """
        trial = self._trial
        own, whole, stopped = trial.callbacks, trial.history, trial.stopped
        try:
            trial.callbacks = own if callbacks is None else checked(callbacks)
            trial.history, trial.epochs = History(), len(whole)
            react = reactions(trial.callbacks, trial)
            react["on_start"]()
            for record in whole:
                react["on_start_epoch"]()
                trial.history.append(record)
                if verbose:
                    show_text(line_of(record, trial.epochs))
                react["on_end_epoch"]()
            react["on_end"]()
        finally:
            trial.callbacks, trial.history, trial.stopped = own, whole, stopped
        return whole

    def with_closure(self, closure: Any) -> Self:
        """Refused, since closures work on torchbearer's own state: `Trial(…, step=)` is ours."""
        raise UsageError(
            "expected a step instead of a closure: Trial(network, optimizer, step=function), where "
            "the function takes the network and a batch, and returns the loss."
        )

    def with_loader(self, batch_loader: Any) -> Self:
        """Refused, since loaders work on torchbearer's own state: give an iterable of batches."""
        raise UsageError(
            "expected data instead of a loader of batches: with_generators(train=…) takes any "
            "iterable of batches, and step= takes them as they are."
        )

    def for_inf_steps(self, train: bool = True, val: bool = True, test: bool = True) -> Self:
        """Refused, since an epoch that does not end has no record: `for_steps` sets its length."""
        raise UsageError(
            "expected a number of steps, since an epoch has to end for its record: "
            "for_steps(train_steps=1000) goes through the data as often as that takes."
        )

    def for_inf_train_steps(self) -> Self:
        """As `for_inf_steps`."""
        return self.for_inf_steps()

    def for_inf_val_steps(self) -> Self:
        """As `for_inf_steps`."""
        return self.for_inf_steps()

    def for_inf_test_steps(self) -> Self:
        """As `for_inf_steps`."""
        return self.for_inf_steps()

    def with_inf_train_loader(self) -> Self:
        """As `for_inf_steps`: `for_steps` goes through the data as often as an epoch takes."""
        return self.for_inf_steps()

    def cpu(self) -> Self:
        """As `to("cpu")`."""
        self._trial.to("cpu")
        return self

    def cuda(self, device: int | torch.device | None = None) -> Self:
        """As `to("cuda")`, or to the GPU of this index."""
        index = torch.device("cuda", device) if isinstance(device, int) else device
        self._trial.to("cuda" if index is None else index)
        return self

    def state_dict(self) -> dict[str, Any]:
        """Everything that the training depends on from here: weights, optimizer, history, ….

        Example:
            >>> sorted(trial.state_dict())[:3]
            ['batches', 'callbacks', 'grad_norm']
        """
        trial = self._trial
        return {**trial.state(), "network": trial.whole_state()}

    def load_state_dict(self, state: dict[str, Any], resume: bool = True) -> Self:
        """Continues from what `state_dict()` returned.

        Args:
            state: What it returned.
            resume: Whether to take up the training, too; else the weights alone.

        Raises:
            UsageError: If it is not the state of a trial.
        """
        if not isinstance(state, dict) or "network" not in state or "history" not in state:
            got = ", ".join(map(str, state)) if isinstance(state, dict) else type(state).__name__
            raise UsageError(f"expected what a trial's state_dict() returned, got {got:.200}.")
        trial = self._trial
        trial.set_whole_state(state["network"])
        if not resume:
            return self
        trial.set_state({name: part for name, part in state.items() if name != "network"})
        return self

    # ---- Lightning and d2l ----

    @names_checked
    def fit(self, data: Any = None, *, epochs: int | None = None, verbose: bool = True) -> History:
        """Trains as a Trainer of Lightning or d2l does.

        Args:
            data: A DataModule with `train_dataloader()` and `val_dataloader()`, or training data;
                without it, the data of the trial.
            epochs: How many epochs; without it, the `max_epochs` of `Trial.of`.
            verbose: Whether to show progress.

        Raises:
            UsageError: If no number of epochs is known, or there is no training data.

        Example:
            >>> history = ad.Trial.of(module, max_epochs=1).fit((x, y), verbose=False)
        """
        trial = self._trial
        epochs = epochs if epochs is not None else trial.max_epochs
        if epochs is None:
            raise UsageError("expected a number of epochs, got none: fit(data, epochs=10).")
        if data is not None:
            trial.with_generators(data)
        return trial.run(epochs, verbose)

    # ---- how ----

    @property
    def _trial(self) -> "Trial":
        return cast("Trial", self)

    def _given(self, name: str, data: Any, steps: int | None, **how: Any) -> Self:
        self._trial.with_generators(**{name: data}, **how)
        return self if steps is None else self.for_steps(**{f"{name}_steps": steps})


KEYS = {"train_data": "train", "validation_data": "val", "test_data": "test"}


def set_named(key: Any) -> str:
    """The set that a `data_key` names: "train", "val", "test", or a key of torchbearer."""
    name = KEYS.get(str(key), str(key))
    if name not in KEYS.values():
        raise UsageError(f"expected a data_key of 'train', 'val' or 'test', got {key!r}.")
    return name
