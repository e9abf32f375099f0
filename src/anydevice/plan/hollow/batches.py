"""How many samples the batches have that a program's first network is given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Batches:
    """What the first network was given, and the backward passes from it."""

    def __init__(self) -> None:
        self.samples: int | None = None  # in the first batch
        self.tokens: int | None = None  # in the first batch, if it is of whole numbers
        self._network: int | None = None  # id of the first network
        self._sizes: list[tuple[int, int, bool]] = []  # event, size, whether it has gradients
        self._backwards: dict[int, int] = {}  # the events at which autograd's runs began, by id

    def meet(self, network: nn.Module, inputs: Any) -> None:
        """A network with parameters is called for the first time."""
        if self.samples is None and (size := batch_size(inputs)) is not None:
            self.samples, self._network = size, id(network)
            whole = [t for t in tensors(inputs) if t.dim() > 1 and not t.is_floating_point()]
            self.tokens = whole[0].numel() if whole else None

    def add(self, event: int, module: nn.Module, inputs: Any) -> None:
        """A module is given this, perhaps the first network."""
        if id(module) == self._network and (size := batch_size(inputs)) is not None:
            self._sizes.append((event, size, torch.is_grad_enabled()))

    def goes_back(self, run: int, event: int) -> None:
        """An op of this run of autograd is called."""
        self._backwards.setdefault(run, event)

    def between(self, begin: int, end: int) -> int | None:
        """The samples of all micro-batches; a batch that a network gets twice counts once."""
        batches = [batch for batch in self._sizes if begin <= batch[0] < end]
        batches = [batch for batch in batches if batch[2]] or batches
        backwards = sum(begin <= event < end for event in self._backwards.values())
        share = min(1.0, backwards / len(batches)) if backwards and batches else 1.0
        return round(share * sum(size for _, size, _ in batches)) or None


def batch_size(inputs: Any) -> int | None:
    """The first dimension of the first tensor that has one."""
    return next((tensor.shape[0] for tensor in tensors(inputs) if tensor.dim()), None)


def tensors(nested: Any) -> list[Tensor]:
    """The tensors in lists, dicts and the like."""
    return [leaf for leaf in torch.utils._pytree.tree_leaves(nested) if isinstance(leaf, Tensor)]
