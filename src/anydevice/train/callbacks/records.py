"""What is written down while training: a CSV file, TensorBoard's events, a profile."""

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anydevice.errors import UsageError
from anydevice.files import write_whole
from anydevice.train.callbacks.callback import Callback
from anydevice.train.data.rows import sample_count

if TYPE_CHECKING:
    from anydevice.train.trial import Trial


class CSV(Callback):
    """The history as a CSV file, written whole after each epoch.

    Args:
        path: The file.

    Example:
        >>> csv = CSV(folder / "history.csv")
    """

    on_every_rank = False

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def on_end_epoch(self, trial: "Trial") -> None:  # noqa: D102
        columns = list(dict.fromkeys(name for record in trial.history for name in record))
        page = io.StringIO(newline="")
        writer = csv.DictWriter(page, columns)
        writer.writeheader()
        writer.writerows(trial.history)
        write_whole(self.path, page.getvalue().encode())


class TensorBoard(Callback):
    """Events for TensorBoard: scalars and histograms each epoch, graph and images once.

    Needs the package tensorboard: `pip install anydevice[tensorboard]`.

    Args:
        folder: Where the events go.
        images: How many images of the first batch to show.
        histograms: Whether to write histograms of weights and gradients.

    Raises:
        UsageError: At the start of a run without the package.

    Example:
        >>> board = TensorBoard(folder / "events", histograms=False)
    """

    on_every_rank = False

    def __init__(self, folder: str | Path, images: int = 16, histograms: bool = True) -> None:
        self.folder, self.images, self.histograms = Path(folder), images, histograms
        self._writer: Any = None

    def on_start(self, trial: "Trial") -> None:  # noqa: D102
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            raise UsageError(
                "expected the package tensorboard, got none: pip install anydevice[tensorboard]."
            ) from error
        self._writer = SummaryWriter(str(self.folder))

    def on_step(self, trial: "Trial") -> None:  # noqa: D102
        if trial.job.step == 1:
            self._first(trial, trial.job.batch)

    def on_end_epoch(self, trial: "Trial") -> None:  # noqa: D102
        record = dict(trial.history[-1])
        epoch = record.pop("epoch")
        for name, figure in record.items():
            if isinstance(figure, (int, float)):
                self._writer.add_scalar(name, figure, epoch)
        for name, parameter in trial.network.named_parameters() if self.histograms else ():
            self._writer.add_histogram(name, _held(parameter), epoch)
            if parameter.grad is not None:
                self._writer.add_histogram(f"{name}.grad", _held(parameter.grad), epoch)
        self._writer.flush()

    def on_end(self, trial: "Trial") -> None:  # noqa: D102
        if self._writer:
            self._writer.close()

    def _first(self, trial: "Trial", batch: Any) -> None:
        inputs = batch[0] if isinstance(batch, (tuple, list)) else batch
        if not isinstance(inputs, Tensor):
            return
        if inputs.dim() == 4 and inputs.size(1) in (1, 3):
            shown = inputs[: min(self.images, sample_count(inputs))].float()
            low, high = shown.amin(), shown.amax()
            self._writer.add_images("images", (shown - low) / (high - low).clamp_min(1e-12))
        if not trial.is_sharded:  # whose forward pass all ranks do together
            self._writer.add_graph(trial.network, inputs[:1])


def _held(tensor: Tensor) -> Tensor:
    """What this process has of a tensor that is sharded over the ranks."""
    held: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return held


class Profile(Callback):
    """A Chrome trace of some steps, by torch.profiler.

    Args:
        path: The file; open it in chrome://tracing or ui.perfetto.dev.
        after: After how many steps to begin.
        steps: How many steps to trace.

    Example:
        >>> profile = Profile(folder / "trace.json", after=10)
    """

    on_every_rank = False

    def __init__(self, path: str | Path, after: int = 10, steps: int = 5) -> None:
        self.path, self.after, self.steps = Path(path), after, steps
        self._profile: Any = None

    def on_step(self, trial: "Trial") -> None:  # noqa: D102
        if trial.job.step == self.after:
            self._profile = torch.profiler.profile(record_shapes=True)
            self._profile.start()
        elif trial.job.step == self.after + self.steps:
            self._end()

    def on_end(self, trial: "Trial") -> None:  # noqa: D102
        self._end()

    def _end(self) -> None:
        if self._profile:
            self._profile.stop()
            self._profile.export_chrome_trace(str(self.path))
            self._profile = None
