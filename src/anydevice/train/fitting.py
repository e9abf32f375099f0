"""A step that does not fit into memory is taken again in smaller parts.

The gradient is that of the mean loss over the whole batch; batch norm sees the parts.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_flatten, tree_unflatten

from anydevice.notices import log
from anydevice.train.forward import Result, sample_count
from anydevice.train.loop import Job, gradients


class Fitting:
    """Takes each batch in as many parts as fit, and remembers how many that were."""

    def __init__(self, device: torch.device, parts: int = 1) -> None:
        self.device = device
        self.parts = parts
        self._kept: list[Tensor] = []

    def gradients(self, job: Job, group: list[Any]) -> list[Result]:
        """As `loop.gradients`; after running out of memory, from the same state in more parts."""
        buffers = list(job.network.buffers())
        self._keep(buffers)
        numbers = self._module().get_rng_state(self.device)
        while (results := self.attempt(job, group)) is None:
            assert job.optimizer
            job.optimizer.zero_grad()
            _copy(buffers, self._kept)
            self._module().set_rng_state(numbers, self.device)
            self._split_further(job, group)
        return results

    def attempt(self, job: Job, group: list[Any]) -> list[Result] | None:
        """The outcome, or None when there was too little memory; nothing is held on to then."""
        try:
            return gradients(job, self._in_parts(group))
        except torch.OutOfMemoryError:
            if self.parts >= max(map(sample_count, group)):
                raise
        return None

    def _keep(self, buffers: list[Tensor]) -> None:
        """What a forward pass changes in the network: the running figures of batch norm."""
        if len(self._kept) != len(buffers):
            self._kept = [torch.empty_like(buffer) for buffer in buffers]
        _copy(self._kept, buffers)

    def _split_further(self, job: Job, group: list[Any]) -> None:
        torch.accelerator.empty_cache()
        self.parts *= 2
        normalises = any(isinstance(module, _BatchNorm) for module in job.network.modules())
        but = ", whose statistics batch norm takes" if normalises else ""
        self._say(
            f"is out of memory for a batch of {sample_count(group[0])}; from here on each batch is "
            f"taken in {self.parts} parts{but}."
        )

    def _say(self, what: str) -> None:
        log.warning(f"anydevice: {self.device} {what}")

    def _in_parts(self, group: list[Any]) -> list[Any]:
        if self.parts == 1:
            return group
        return [part for batch in group for part in _parts(batch, self.parts)]

    def _module(self) -> Any:
        return torch.get_device_module(self.device)


def _copy(to: list[Tensor], source: list[Tensor]) -> None:
    if to:
        torch._foreach_copy_(to, source)


def _parts(batch: Any, parts: int) -> list[Any]:
    """The batch cut along dimension 0 of its tensors; what is no tensor goes with each part."""
    size = sample_count(batch)
    leaves, shape = tree_flatten(batch)
    cuts = [
        leaf.chunk(parts) if isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == size else leaf
        for leaf in leaves
    ]
    number = next(len(cut) for cut in cuts if isinstance(cut, tuple))
    return [
        tree_unflatten([cut[place] if isinstance(cut, tuple) else cut for cut in cuts], shape)
        for place in range(number)
    ]
