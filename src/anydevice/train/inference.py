"""What a trained network answers, batch by batch."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anydevice.train.forward import without_target


def answer(network: nn.Module, batch: Any) -> Any:
    """The output for a batch's inputs; a target that comes along is left out."""
    if isinstance(batch, Mapping):
        return network(**without_target(batch))
    if isinstance(batch, (tuple, list)):
        return network(*(batch if len(batch) == 1 else batch[:-1]))
    return network(batch)


def joined(outputs: list[Any]) -> Any:
    """The outputs of all batches as that of one; None without any."""
    return torch.utils._pytree.tree_map(_joined, *outputs) if outputs else None


def _joined(*parts: Any) -> Any:
    if not isinstance(parts[0], Tensor):
        return parts[0] if len(set(map(repr, parts))) == 1 else list(parts)
    return torch.cat(parts) if parts[0].dim() else torch.stack(parts)
