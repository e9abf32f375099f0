"""What a trial's network answers: which classes it mixes up, and where it is worst."""

import copy
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from rich.text import Text
from torch import Tensor, nn

from anydevice.devices.move import move
from anydevice.errors import UsageError
from anydevice.tables import Shown, Table
from anydevice.train.data.rows import rows_of
from anydevice.train.history import drawn, plotting
from anydevice.train.loop.forward import Result
from anydevice.train.loop.loop import as_it_was
from anydevice.train.metrics.classes import Confusion, answered, class_names

if TYPE_CHECKING:
    from anydevice.train.trial import Trial


@dataclass(frozen=True, repr=False)
class ConfusionTable(Shown):
    """How often each class was taken for each; printed, or in a notebook, it is a table.

    Attributes:
        matrix: A row for each target, a column for each answer.
        names: The classes.
    """

    matrix: Tensor
    names: Sequence[str]

    @property
    def accuracy(self) -> float:
        """The share of samples that were recognised."""
        return float(self.matrix.diagonal().sum() / self.matrix.sum().clamp_min(1))

    def table(self) -> Table:
        """The counts, with the share of each class that was recognised and that was right."""
        counts = self.matrix.tolist()
        right, rows, columns = self.matrix.diagonal(), self.matrix.sum(1), self.matrix.sum(0)
        recall, precision = right / rows.clamp_min(1), right / columns.clamp_min(1)
        head = ["target", *self.names, "recall", "precision"]
        body: list[Sequence[str]] = [
            [name, *map(str, row), f"{recall[place]:.3f}", f"{precision[place]:.3f}"]
            for place, (name, row) in enumerate(zip(self.names, counts, strict=True))
        ]
        return Table(head, body, title="a row for each target", right=head[1:])

    def plot(self) -> Any:
        """The counts as a picture, each row coloured by the shares of its answers.

        Needs the package matplotlib.

        Returns:
            The figure of matplotlib.

        Raises:
            UsageError: If matplotlib is not installed.

        Example:
            >>> figure = trial.confusion((x, y)).plot()
        """
        classes = len(self.names)
        size = max(4.5, 0.42 * classes + 2)
        figure, panel = plotting().subplots(figsize=(size + 0.5, size))
        shares = self.matrix / self.matrix.sum(1, keepdim=True).clamp_min(1)
        panel.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1)
        for row, column in itertools.product(range(classes), repeat=2):
            if count := int(self.matrix[row, column]):
                color = "white" if shares[row, column] > 0.5 else "black"
                panel.text(column, row, count, ha="center", va="center", color=color, fontsize=8)
        panel.set_xticks(range(classes), self.names, rotation=45, ha="right")
        panel.set_yticks(range(classes), self.names)
        panel.set_xlabel("answer")
        panel.set_ylabel("target")
        return drawn(figure)

    def _shown(self) -> Iterator[Table | Text]:
        yield self.table()
        yield Text(f"accuracy {self.accuracy:.4g}")


@dataclass(frozen=True)
class Answer:
    """One sample that was answered badly: its place in the data, loss, target and answer."""

    index: int
    loss: float
    target: Any
    answer: Any
    inputs: Any


class Worst(Shown, list[Answer]):
    """The samples with the largest losses, the worst first; a list that shows itself as a table."""

    def table(self) -> Table:
        """A row for each sample."""
        rows: list[Sequence[str]] = [
            [str(each.index), f"{each.loss:.4g}", _text(each.target), _text(each.answer)]
            for each in self
        ]
        return Table(["sample", "loss", "target", "answer"], rows, right=("sample", "loss"))

    def _shown(self) -> Iterator[Table]:
        yield self.table()

    __repr__ = list.__repr__


def confusion(trial: "Trial", batches: Any, names: Sequence[str] | None) -> ConfusionTable:
    """The confusion matrix of a trial over these batches."""
    measure = Confusion()
    measure.reset(trial.device)
    for result, _ in _results(trial, batches):
        measure.update(result)
    matrix = measure.matrix.cpu()
    if not len(matrix):
        raise UsageError("expected batches to measure with, got none: is the data empty?")
    return ConfusionTable(matrix, class_names(names, len(matrix)))


def worst(trial: "Trial", batches: Any, number: int) -> Worst:
    """The samples of these batches with the largest losses."""
    each, found, start = loss_of_each(trial), Worst(), 0
    for result, batch in _results(trial, batches):
        with torch.no_grad():
            losses = each(result).float()
        size = len(losses)
        for place in losses.topk(min(number, size)).indices.tolist():
            one = rows_of((batch, result.output, result.target), slice(place, place + 1), size)
            (own, output, target) = move(one, "cpu")
            answer, right = _answer(output, target)
            inputs = own[:-1] if isinstance(own, (tuple, list)) else own
            inputs = inputs[0] if isinstance(inputs, (tuple, list)) and len(inputs) == 1 else inputs
            found.append(Answer(start + place, float(losses[place]), right, answer, inputs))
        found.sort(key=lambda answer: -answer.loss)
        del found[number:]
        start += size
    return found


def loss_of_each(trial: "Trial") -> Callable[[Result], Tensor]:
    """The function for the losses of a batch's samples, one by one."""
    loss = trial.loss
    if loss is None or trial.recipe.step is not None:
        raise UsageError(
            'expected a trial with its own loss for worst(), such as Trial(network, "adam", '
            '"cross_entropy"), got one whose network or step makes it.'
        )
    whole = _without_mean(loss)

    def each(result: Result) -> Tensor:
        if whole is not None:
            losses: Tensor = whole(result.output, result.target)
            return losses.reshape(result.size, -1).mean(1)
        rows = [slice(row, row + 1) for row in range(result.size)]
        pairs = (rows_of((result.output, result.target), row, result.size) for row in rows)
        return torch.stack([loss(output, target) for output, target in pairs])

    return each


def _without_mean(loss: Any) -> Any:
    """The same loss for each sample, where it can be asked for; else None."""
    if isinstance(loss, nn.Module):
        if not hasattr(loss, "reduction"):
            return None
        other: Any = copy.copy(loss)
        other.reduction = "none"
        return other
    try:
        takes = "reduction" in inspect.signature(loss).parameters
    except (TypeError, ValueError):
        return None
    return (lambda output, target: loss(output, target, reduction="none")) if takes else None


def _results(trial: "Trial", batches: Any) -> Iterator[tuple[Result, Any]]:
    network = trial.network
    for batch in batches:
        with as_it_was(network), torch.no_grad(), trial.precision.autocast:
            yield trial.job.forward(network.eval(), batch), batch


def _answer(output: Any, target: Any) -> tuple[Any, Any]:
    """A class and the right one; of other outputs, the numbers."""
    try:
        own, right, _ = answered(output, target)
    except UsageError:
        own, right = output, target
    if isinstance(target, Tensor) and target.is_floating_point() and target.shape == output.shape:
        own, right = output, target
    return _plain(own), _plain(right)


def _plain(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.item() if value.numel() == 1 else value.squeeze(0).tolist()


def _text(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else text[:39] + "…"
