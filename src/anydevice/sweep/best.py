"""Which figure is a sweep's result, and whether more or less of it is better."""

import re
from collections.abc import Iterable

# What is looked at first; of the figures that a sweep has, the first of these is its result.
FIRST = ("val_accuracy", "accuracy", "val_loss", "loss")
HIGHER = re.compile(
    r"acc|top_?\d|score|precision|recall|f1|auc|auroc|iou|dice|bleu|rouge|r2|reward|return|psnr"
    r"|ssim|per_second|throughput|flops",
    re.IGNORECASE,
)


def default_result(figures: Iterable[str]) -> str | None:
    """The figure by which runs are compared unless another is named; None without figures.

    >>> default_result(["loss", "accuracy", "seconds"])
    'accuracy'
    """
    names = [name for name in figures if name not in ("epoch", "seconds")]
    return next((name for name in FIRST if name in names), names[0] if names else None)


def higher_is_better(figure: str) -> bool:
    """Whether more is better, by the figure's name: `higher_is_better("val_loss")` is False."""
    return bool(HIGHER.search(figure))
