"""A step that does not fit into memory is taken again in smaller parts.

Note [A step that runs out of memory]
-------------------------------------
The gradient has to be that of the mean loss over the whole batch, as if the batch had fitted. So
before each step `Fitting` copies what a forward pass changes: the network's buffers (the running
statistics of batch norm) and the device's random state (dropout). When the step raises
`torch.OutOfMemoryError`,

1. the traceback goes first, since its frames hold the activations: `attempt` returns None, and
   the next attempt is made outside the `except` block;
2. gradients are cleared, buffers and random state are put back;
3. `job.parts` is doubled, the batch is cut along dimension 0, and the parts go through
   `loop.gradients` like batches that are accumulated: each loss is weighted by its samples.

`job.parts` is kept, also by checkpoints: each later batch is split in the same way. Batch norm
computes its statistics from the parts; nothing can be done about that, and the log says so. With
DDP all ranks take the step again together (`ddp.FittingTogether`): those that had succeeded as
well, since the gradients are averaged.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from anydevice.notices import log
from anydevice.train.data.rows import parts_of, sample_count
from anydevice.train.loop.forward import Result
from anydevice.train.loop.loop import Job, gradients


class Fitting:
    """Takes each batch in as many parts as fit."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
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
            return gradients(job, self.in_parts(job, group))
        except torch.OutOfMemoryError:
            if job.parts >= max(map(sample_count, group)):
                raise
        return None

    def in_parts(self, job: Job, group: list[Any]) -> list[Any]:
        """The group's batches, each in as many parts as the job says."""
        if job.parts == 1:
            return group
        return [part for batch in group for part in parts_of(batch, job.parts)]

    def say(self, what: str) -> None:
        """Logs that a batch did not fit."""
        log.warning(f"anydevice: {self.device} {what}")

    def _keep(self, buffers: list[Tensor]) -> None:
        """What a forward pass changes in the network: the running statistics of batch norm."""
        if len(self._kept) != len(buffers):
            self._kept = [torch.empty_like(buffer) for buffer in buffers]
        _copy(self._kept, buffers)

    def _split_further(self, job: Job, group: list[Any]) -> None:
        torch.accelerator.empty_cache()
        job.parts *= 2
        normalises = any(isinstance(module, _BatchNorm) for module in job.network.modules())
        but = ", from which batch norm computes its statistics" if normalises else ""
        self.say(
            f"is out of memory for a batch of {sample_count(group[0])}; from here on each batch is "
            f"split into {job.parts} parts{but}."
        )

    def _module(self) -> Any:
        return torch.get_device_module(self.device)


def _copy(to: list[Tensor], source: list[Tensor]) -> None:
    if to:
        torch._foreach_copy_(to, source)
