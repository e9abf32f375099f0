"""A trial's methods under the names of others: torchbearer's, Lightning's and d2l's."""

from typing import TYPE_CHECKING, Any, Self, cast

import torch
from torch import Tensor

from anydevice.errors import UsageError, names_checked
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

    def load_state_dict(self, state: dict[str, Any]) -> Self:
        """Continues from what `state_dict()` returned.

        Raises:
            UsageError: If it is not the state of a trial.
        """
        if not isinstance(state, dict) or "network" not in state or "history" not in state:
            got = ", ".join(map(str, state)) if isinstance(state, dict) else type(state).__name__
            raise UsageError(f"expected what a trial's state_dict() returned, got {got:.200}.")
        trial = self._trial
        trial.set_whole_state(state["network"])
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
