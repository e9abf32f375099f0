"""Callbacks that watch one figure: stop when it no longer gets better, keep where it was best."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file, save

from anydevice.errors import UsageError
from anydevice.files import write_whole
from anydevice.train.callbacks.averaging import averaged
from anydevice.train.callbacks.callback import Callback
from anydevice.train.history import is_shaped

if TYPE_CHECKING:
    from anydevice.train.trial import Trial


class Watching(Callback):
    """Knows the best value so far of a figure; losses and errors are best when small."""

    def __init__(self, watch: str = "val_loss", mode: str | None = None) -> None:
        if mode not in (None, "min", "max"):
            raise UsageError(f"expected a mode of 'min' or 'max', got {mode!r}.")
        small_is_good = any(word in watch for word in ("loss", "error", "mse", "mae"))
        self.watch = watch
        self.sign = 1 if (mode or ("min" if small_is_good else "max")) == "max" else -1
        self.best: float | None = None

    def improved(self, trial: "Trial", by: float = 0.0) -> bool:
        """Whether the last epoch was the best."""
        record = trial.history[-1]
        if self.watch not in record:
            raise UsageError(
                f"expected to watch a figure among {', '.join(record)}, got {self.watch!r}."
            )
        figure = record[self.watch]
        if is_shaped(figure):
            raise UsageError(f"expected to watch a figure that is one number, got {self.watch!r}.")
        first = self.best is None or math.isnan(self.best)
        better = first or self.sign * (figure - (self.best or 0.0)) > by
        if better:
            self.best = figure
        return better

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {name: value for name, value in vars(self).items() if name in ("best", "waited")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from there."""
        vars(self).update(state)


class EarlyStopping(Watching):
    """Ends the run when a figure has stopped improving.

    Args:
        watch: A figure of the history's records.
        patience: For how many epochs to wait.
        by: The least change that counts as better.
        mode: `"min"` or `"max"`; without it, losses and errors are best when small.

    Raises:
        UsageError: If the mode is neither, or, in the run, no record has the figure.

    Example:
        >>> stopping = EarlyStopping("val_loss", patience=5)
    """

    def __init__(
        self, watch: str = "val_loss", patience: int = 3, by: float = 0.0, mode: str | None = None
    ) -> None:
        super().__init__(watch, mode)
        self.patience, self.by = patience, by
        self.waited = 0

    def on_end_epoch(self, trial: "Trial") -> None:  # noqa: D102
        self.waited = 0 if self.improved(trial, self.by) else self.waited + 1
        if self.waited >= self.patience:
            trial.stop()


class Best(Watching):
    """Keeps the weights of the best epoch in a file.

    Args:
        path: The file, in safetensors' format.
        watch: A figure of the history's records.
        mode: `"min"` or `"max"`; without it, losses and errors are best when small.
        restore: Whether the network has these weights after the run.

    Raises:
        UsageError: If the mode is neither, or, in the run, no record has the figure.

    Example:
        >>> best = Best(folder / "best.safetensors", watch="val_accuracy")
    """

    def __init__(
        self,
        path: str | Path,
        watch: str = "val_loss",
        mode: str | None = None,
        restore: bool = True,
    ) -> None:
        super().__init__(watch, mode)
        self.path, self.restore = Path(path), restore

    def on_end_epoch(self, trial: "Trial") -> None:  # noqa: D102
        if self.improved(trial):
            with averaged(trial):  # with which the figure was measured
                state = trial.whole_state()
            if trial.ranks is None or trial.ranks.first:
                write_whole(self.path, save(state))

    def on_end(self, trial: "Trial") -> None:  # noqa: D102
        if self.restore and self.best is not None:
            trial.set_whole_state(load_file(self.path))
