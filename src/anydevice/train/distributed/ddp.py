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
from anydevice.train.data.portions import Portion, rows_of
from anydevice.train.fitting import Fitting
from anydevice.train.forward import Forward, Result
from anydevice.train.loop import Job
from anydevice.train.ranks import Ranks


class Whole(nn.Module):
    """From the batch to the loss in one forward pass, which DDP asks for, however it is done."""

    def __init__(self, network: nn.Module, loss: object, forward: Forward) -> None:
        super().__init__()
        self.network = network
        self.loss = loss if isinstance(loss, nn.Module) else None
        self._forward = forward

    def forward(self, batch: Any) -> Result | Tensor:
        """The outcome of a batch; without one, nothing is done."""
        return torch.zeros(()) if batch is None else self._forward(self.network, batch)


class Together:
    """What all ways to train together do: parts of batches, weighed by their rows."""

    is_sharded = False

    def __init__(self, ranks: Ranks, network: Any, forward: Forward, sums: bool) -> None:
        self.ranks, self.network, self._forward = ranks, network, forward
        self.wrapped = network
        self.sums = sums

    def forward(self, network: Any, portion: Portion) -> Result:
        """As the trial's own, for a part of a batch; the size is that of the rows that count."""
        loss, output, target, _ = self.outcome(portion.batch)
        if self.sums and portion.rows:  # what the sum over the whole batch is like
            loss = loss * (portion.whole / portion.rows)
        return Result(loss, output, target, portion.rows)

    def gradients(self, job: Job, group: list[Portion]) -> list[Result]:
        """As `loop.gradients`, of the whole batches."""
        return self.attempt(job, group)

    def attempt(self, job: Job, group: list[Portion]) -> list[Result]:
        """The ranks' gradients are averaged while the last part's come."""
        results = []
        samples = sum(portion.whole for portion in group)
        for place, portion in enumerate(group, 1):
            with self.averaging(place == len(group)):
                with job.autocast:
                    result = job.forward(job.network, portion)
                self.before_backward()
                # Undoes that the ranks' gradients are averaged, and weighs by rows.
                weight = self.ranks.world * portion.rows / (portion.whole if job.sums else samples)
                share = result.loss if weight == 1 else result.loss * weight
                (job.scaler.scale(share) if job.scaler else share).backward()  # type: ignore[no-untyped-call]
            results.append(result)
        return results

    def outcome(self, batch: Any) -> Result:
        """Network and loss of a batch."""
        return self._forward(self.network, batch)

    def averaging(self, last: bool) -> AbstractContextManager[Any]:
        """Whether gradients that come inside the block are averaged over the ranks."""
        raise NotImplementedError

    def before_backward(self) -> None:
        """What is to be noted before the gradients come."""


class Replicated(Together):
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

        Else it would do so after the first step, also of a run that goes on: that step's gradients
        would be added up in another order than in the run that was not interrupted.
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
        """Gives the gradients that the others wait for, after a step that broke off here: zeros."""
        if self._versions is None:  # the forward pass that comes before them did not get so far
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
        """After the first step DDP is told whether parameters take no part: it waits for all."""
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
                "anydevice: some parameters take no part in the loss; in each step DDP looks for "
                "those, which costs a little. Freeze them by requires_grad_(False) to avoid it."
            )


class FittingTogether(Fitting):
    """A step that does not fit on one rank is taken again, in more parts, on all of them."""

    def __init__(self, ranks: Ranks, way: Replicated, device: torch.device, parts: int) -> None:
        super().__init__(device, parts)
        self.ranks, self.way = ranks, way

    def attempt(self, job: Job, group: list[Any]) -> list[Result] | None:  # noqa: D102
        results = None
        try:
            results = self.way.attempt(job, self._in_parts(group))
        except torch.OutOfMemoryError:
            alone = self.parts >= max(portion.rows for portion in group)
            if alone or self.way.complete is False:
                raise
        if results is None:
            self.way.finish()
        if self.ranks.any(results is None):
            return None
        self.way.settle(job)
        return results

    def _say(self, what: str) -> None:
        if self.ranks.first:
            log.warning(f"anydevice: a rank's {self.device.type} device {what}")

    def _in_parts(self, group: list[Any]) -> list[Any]:
        if self.parts == 1:
            return group
        return [part for portion in group for part in _parts(portion, self.parts)]


def _parts(portion: Portion, parts: int) -> list[Portion]:
    """The portion in so many; together they are of the one whole."""
    size = max(portion.rows, 1)
    each = -(-size // parts)
    cuts = [slice(start, min(start + each, size)) for start in range(0, size, each)]
    return [
        Portion(
            rows_of(portion.batch, cut, size),
            (cut.stop - cut.start) if portion.rows else 0,
            portion.whole * (cut.stop - cut.start) / size,
        )
        for cut in cuts
    ]


def _version(parameter: Tensor) -> int:
    """Changes when a gradient is added."""
    return -1 if parameter.grad is None else parameter.grad._version
