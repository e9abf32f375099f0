"""Metrics of classes that are more than one number: confusion matrix, share by class, ROC curve."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anydevice.errors import UsageError
from anydevice.train.loop.forward import Result
from anydevice.train.metrics.measure import Measure

BINS = 200  # of scores from 0 to 1, between which a ROC curve has its points


class Confusion(Measure):
    """How often each class was taken for each: a row for each target, a column for each answer."""

    kept = ("matrix",)
    adds_up = True
    is_number = False

    def reset(self, device: torch.device) -> None:  # noqa: D102
        self.matrix = torch.zeros(0, 0, dtype=torch.int64, device=device)

    def update(self, result: Result) -> None:  # noqa: D102
        answers, targets, classes = answered(result.output, result.target)
        if not len(self.matrix):
            self.matrix = torch.zeros(classes, classes, dtype=torch.int64, device=answers.device)
        counted = (targets >= 0) & (targets < classes)  # ignore_index is in no row
        places = torch.where(counted, targets * classes + answers, 0)
        self.matrix.view(-1).index_add_(0, places, counted.to(torch.int64))

    def value(self) -> Any:  # noqa: D102
        return self.matrix.long()


class PerClass(Confusion):
    """The share of each class's samples that were recognised."""

    def value(self) -> Any:  # noqa: D102
        return self.matrix.diagonal() / self.matrix.sum(1).clamp_min(1)


class Roc(Measure):
    """The ROC curve: a row of false positive rates and one of true positive rates.

    With more than two classes a curve for each, against all others.
    """

    kept = ("counts",)
    adds_up = True
    is_number = False

    def reset(self, device: torch.device) -> None:  # noqa: D102
        self.counts = torch.zeros(0, 2, BINS, dtype=torch.int64, device=device)

    def update(self, result: Result) -> None:  # noqa: D102
        scores, positive = scored(result.output, result.target)
        classes = scores.size(1)
        if not len(self.counts):
            shape = (classes, 2, BINS)
            self.counts = torch.zeros(shape, dtype=torch.int64, device=scores.device)
        bins = (scores.clamp(0, 1) * BINS).long().clamp_max(BINS - 1)
        rows = torch.arange(classes, device=scores.device) * 2 * BINS
        places = (rows + positive.long() * BINS + bins).reshape(-1)
        self.counts.view(-1).index_add_(0, places, torch.ones_like(places))

    def value(self) -> Any:  # noqa: D102
        curves = _curves(self.counts)
        return curves[0] if len(curves) == 1 else curves


class Auc(Roc):
    """The area under the ROC curve; with more than two classes the mean of theirs."""

    is_number = True

    def value(self) -> Any:  # noqa: D102
        return torch.stack([torch.trapezoid(y, x) for x, y in _curves(self.counts)]).mean()


def _curves(counts: Tensor) -> Tensor:
    """Rates of false and of true positives, from the highest threshold to the lowest."""
    above = counts.flip(2).cumsum(2)
    rates = above / above[:, :, -1:].clamp_min(1)
    return torch.cat([torch.zeros_like(rates[:, :, :1]), rates], 2)


def answered(output: Any, target: Any) -> tuple[Tensor, Tensor, int]:
    """The class that was answered and the right one, and how many classes there are."""
    _refuse_others(output, target)
    if output.shape == target.shape and output.dim() > 1 and output.size(1) > 1:
        target = target.argmax(1)  # soft labels
    if output.dim() == target.dim() + 1 and output.size(1) > 1:
        return output.argmax(1).reshape(-1), target.reshape(-1).long(), output.size(1)
    return (output.reshape(-1) > 0).long(), (target.reshape(-1) > 0.5).long(), 2


def scored(output: Any, target: Any) -> tuple[Tensor, Tensor]:
    """A column of scores for each class that has a curve, and which samples are of it."""
    _refuse_others(output, target)
    if output.dim() == 2 and output.size(1) > 1 and target.dim() == 1:
        scores = output.float().softmax(1)
        columns = torch.arange(output.size(1), device=output.device)
        positive = target.unsqueeze(1) == columns
        return (scores[:, 1:], positive[:, 1:]) if output.size(1) == 2 else (scores, positive)
    return output.float().sigmoid().reshape(-1, 1), (target.reshape(-1, 1) > 0.5)


def _refuse_others(output: Any, target: Any) -> None:
    if isinstance(output, Tensor) and isinstance(target, Tensor):
        alike = output.shape == target.shape
        classes = output.dim() == target.dim() + 1
        if output.is_floating_point() and (alike or classes):
            return
    shown = [list(t.shape) if isinstance(t, Tensor) else type(t).__name__ for t in (output, target)]
    raise UsageError(
        "expected outputs with one dimension more than the targets (the classes, at dimension 1), "
        f"got outputs of shape {shown[0]} and targets of shape {shown[1]}."
    )


def class_names(names: Sequence[str] | None, classes: int) -> list[str]:
    """The names that were given, or the classes' numbers."""
    if names is not None and len(names) != classes:
        raise UsageError(f"expected {classes} names of classes, got {len(names)}.")
    return [str(name) for name in (names if names is not None else range(classes))]
