"""Targets that are made softer while training: label smoothing, and mixup of two samples."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from anydevice.errors import UsageError
from anydevice.train.loop.forward import Forward, Result, forward_of
from anydevice.train.recipes import Loss


def softened(loss: Loss | None, label_smoothing: float, mixup: float) -> Forward:
    """The function for a batch, with softer targets while the network trains."""
    plain = forward_of(loss)
    smooth = smoothed(loss, label_smoothing) if label_smoothing else loss
    training = _mixed(smooth, mixup) if mixup else forward_of(smooth)

    def forward(network: nn.Module, batch: Any) -> Result:
        return (training if network.training else plain)(network, batch)

    return forward


def smoothed(loss: Any, amount: float) -> Loss:
    """The cross entropy with a part of each target spread over all classes."""
    if loss is cross_entropy:
        return partial(cross_entropy, label_smoothing=amount)
    if isinstance(loss, nn.CrossEntropyLoss) and not loss.label_smoothing:
        return partial(_of_module, loss, amount)
    raise UsageError(
        'expected the loss "cross_entropy" for label_smoothing, got '
        f"{getattr(loss, '__name__', type(loss).__name__)}"
        + (" with its own." if isinstance(loss, nn.CrossEntropyLoss) else ".")
    )


def _of_module(loss: nn.CrossEntropyLoss, amount: float, output: Tensor, target: Tensor) -> Tensor:
    how: dict[str, Any] = {"ignore_index": loss.ignore_index, "reduction": loss.reduction}
    return cross_entropy(output, target, loss.weight, label_smoothing=amount, **how)


def _mixed(loss: Loss | None, alpha: float) -> Forward:
    """Each sample mixed with another one of its batch, and the loss of both targets likewise."""

    def forward(network: nn.Module, batch: Any) -> Result:
        if loss is None or isinstance(batch, Mapping) or not isinstance(batch, (tuple, list)):
            raise UsageError(
                "expected batches of (inputs, target) and a loss of the trial for mixup, got "
                f"{'no loss' if loss is None else type(batch).__name__}."
            )
        *inputs, target = batch
        share = float(np.random.beta(alpha, alpha))
        others = torch.randperm(len(target), device=target.device)
        output = network(*(mixed(part, share, others) for part in inputs))
        both = share * loss(output, target) + (1 - share) * loss(output, target[others])
        return Result(both, output, target, len(target))

    return forward


def mixed(inputs: Tensor, share: float, others: Tensor) -> Tensor:
    """So much of each sample, and of another one what is missing: `others` has its row."""
    if not inputs.is_floating_point():
        raise UsageError(
            f"expected inputs of floating-point numbers for mixup, got {inputs.dtype}: leave mixup "
            "out."
        )
    return torch.lerp(inputs[others], inputs, share)
