"""Which of two figures is better: the higher accuracy, the lower loss."""

import math
from collections.abc import Iterable
from typing import Any

from anydevice.sweep.jsonable import is_number

MORE = ("acc", "top", "f1", "auc", "auroc", "precision", "recall", "r2", "score", "iou", "bleu")
LESS = ("loss", "error", "err", "errors", "seconds", "time")
PREFERRED = ("val_accuracy", "accuracy", "val_acc", "acc", "val_loss", "loss")


def more_is_better(name: str) -> bool:
    """True for accuracy and the like; false for losses, errors and durations."""
    parts = name.lower().removeprefix("val_").removeprefix("test_")
    if parts.split("_")[-1] in LESS:
        return False  # top5_error, accumulated_loss
    return parts.startswith(MORE) or parts.endswith(("_acc", "accuracy", "_score", "_per_second"))


def compared_by(names: Iterable[str]) -> str | None:
    """The figure by which runs are compared unless another one is named."""
    there = list(dict.fromkeys(names))
    return next((name for name in PREFERRED if name in there), there[0] if there else None)


def badness(name: str, figure: Any, more: bool | None = None) -> float:
    """A number that is lower for a better figure; what is no number is worst."""
    if not is_number(figure) or math.isnan(figure):
        return math.inf
    return float(-figure if (more_is_better(name) if more is None else more) else figure)
