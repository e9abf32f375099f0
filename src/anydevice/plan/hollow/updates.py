"""Parameters that a program updates by hand: what it computes gradients for, and then writes to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from anydevice.plan.hollow.steps import Steps
from anydevice.plan.time.overloads import Overload

StorageWeakRef: Any = reductions.StorageWeakRef


class Updates:
    """Reports each op on a leaf that requires gradients: Note [What is a step] in steps.py.

    Args:
        steps: What it is reported to.
    """

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        # Storages of leaves. Each is kept by a weak reference, so that one that is freed leaves its
        # id to no other.
        self._leaves: dict[int, Any] = {}

    def look(
        self, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[Tensor]
    ) -> bool:
        """Whether the program computes with a leaf by this op, which ends an update."""
        if op.mutable:
            if self._leaves and any(_storage(t) in self._leaves for t in op.writes(args, kwargs)):
                self.steps.written()
            return False
        if not torch.is_grad_enabled() or op.name == "detach":
            return False
        used = [tensor for tensor in inputs if _is_leaf(tensor)]
        for leaf in used:
            if _storage(leaf) not in self._leaves:
                self._leaves[_storage(leaf)] = StorageWeakRef(leaf.untyped_storage())
        if used:
            self.steps.computed()
        return bool(used)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else 0


def _is_leaf(tensor: Tensor) -> bool:
    return tensor.is_leaf and tensor.requires_grad and tensor.layout == torch.strided
