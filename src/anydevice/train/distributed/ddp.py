"""One step of several ranks, each with the whole network: DistributedDataParallel.

The gradient is that of the mean loss over the whole batch, of which each rank has a part.
"""

import gc
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from anydevice.notices import log
from anydevice.train.data.portions import Portion
from anydevice.train.distributed.strategy import Strategy
from anydevice.train.loop.fitting import Fitting
from anydevice.train.loop.forward import Forward, Result
from anydevice.train.loop.loop import Job
from anydevice.train.ranks import Ranks


class Whole(nn.Module):
    """From the batch to the loss in one forward pass, as DDP requires."""

    def __init__(self, network: nn.Module, loss: object, forward: Forward) -> None:
        super().__init__()
        self.network = network
        self.loss = loss if isinstance(loss, nn.Module) else None
        self._forward = forward

    def forward(self, batch: Any) -> Result | Tensor:
        """The outcome of a batch; without one, nothing is done."""
        return torch.zeros(()) if batch is None else self._forward(self.network, batch)


class Replicated(Strategy):
    """DistributedDataParallel: every rank has the whole network."""

    def __init__(
        self, ranks: Ranks, network: Any, loss: object, forward: Forward, sums: bool
    ) -> None:
        super().__init__(ranks, network, forward, sums)
        whole = Whole(network, loss, forward)
        self.trained = [p for p in whole.parameters() if p.requires_grad]
        self.wrapped: Any = DistributedDataParallel(whole) if self.trained else whole
        self._versions: list[int] | None = None
        self.complete: bool | None = None  # whether all parameters take part; not known at first
        if self.trained:
            self._settle_order()

    def _settle_order(self) -> None:
        """A backward pass of zeros, after which DDP puts gradients together in its lasting order.

        Otherwise it would do so after the first step, of a resumed run too: the gradients of that
        step would be added in another order than in the run that was not interrupted.
        """
        before = [parameter.grad for parameter in self.trained]
        self.wrapped(None)
        for parameter in reversed(self.trained):
            parameter.grad = None
            torch.autograd.backward([parameter], [torch.zeros_like(parameter)])
        for parameter, gradient in zip(self.trained, before, strict=True):
            parameter.grad = gradient

    def gradients(self, job: Job, group: list[Portion]) -> list[Result]:  # noqa: D102
        results = self.attempt(job, group)
        self.settle(job)
        return results

    def outcome(self, batch: Any) -> Result:  # noqa: D102
        if not torch.is_grad_enabled():  # no gradients to average: no rank waits for another
            return super().outcome(batch)
        result: Result = self.wrapped(batch)
        return result

    def averaging(self, last: bool) -> AbstractContextManager[Any]:  # noqa: D102
        self._versions = None
        return nullcontext() if last else self.wrapped.no_sync()

    def before_backward(self) -> None:  # noqa: D102
        if self.wrapped.require_backward_grad_sync:
            self._versions = [_version(parameter) for parameter in self.trained]

    def finish(self) -> None:
        """After a step that failed here: zeros for the gradients that the others wait for."""
        if self._versions is None:  # it failed in or before the forward pass
            self.wrapped.require_forward_param_sync = False  # its buffers are those of the others
            self.wrapped(None)
            self._versions = [_version(parameter) for parameter in self.trained]
        missing = [self.trained[place] for place in self._missing()]
        torch.autograd.backward(missing, [torch.zeros_like(parameter) for parameter in missing])

    def _missing(self) -> list[int]:
        """Which of the parameters have got no gradient from the last backward pass."""
        there = enumerate(zip(self.trained, self._versions or [], strict=True))
        return [place for place, (parameter, before) in there if _version(parameter) == before]

    def settle(self, job: Job) -> None:
        """Once, after the first step: DDP waits for unused parameters unless it looks for them."""
        if self.complete is not None:
            return
        missing = self.ranks.gather(self._missing())
        self.complete = not any(missing)
        if self.complete:
            return
        self.finish()
        for place in set.intersection(*map(set, missing)):
            self.trained[place].grad = None
        module = self.wrapped.module
        self.wrapped = job.network = None
        gc.collect()  # the old one listens to gradients while it is there
        self.wrapped = job.network = DistributedDataParallel(module, find_unused_parameters=True)
        if self.ranks.first:
            log.warning(
                "anydevice: some parameters take no part in the loss; DDP looks for them in each "
                "step, which costs a little. Freeze them by requires_grad_(False) to avoid it."
            )


class FittingTogether(Fitting):
    """A step that does not fit on one rank is taken again, in more parts, on all of them."""

    def __init__(self, strategy: Replicated, device: torch.device) -> None:
        super().__init__(device)
        self.ranks, self.strategy = strategy.ranks, strategy

    def attempt(self, job: Job, group: list[Any]) -> list[Result] | None:  # noqa: D102
        results = None
        try:
            results = self.strategy.attempt(job, self.in_parts(job, group))
        except torch.OutOfMemoryError:
            alone = job.parts >= max(portion.rows for portion in group)
            if alone or self.strategy.complete is False:
                raise
        if results is None:
            self.strategy.finish()
        if self.ranks.any(results is None):
            return None
        self.strategy.settle(job)
        return results

    def say(self, what: str) -> None:  # noqa: D102
        if self.ranks.first:
            log.warning(f"anydevice: a rank's {self.device.type} device {what}")

    def in_parts(self, job: Job, group: list[Any]) -> list[Any]:  # noqa: D102
        if job.parts == 1:
            return group
        return [part for portion in group for part in portion.in_parts(job.parts)]


def _version(parameter: Tensor) -> int:
    """Changes when a gradient is added."""
    return -1 if parameter.grad is None else parameter.grad._version
