"""What the ways to train on several ranks have in common: parts of batches, weighted by rows."""

from contextlib import AbstractContextManager
from typing import Any

from anydevice.train.data.portions import Portion
from anydevice.train.loop.forward import Forward, Result
from anydevice.train.loop.loop import Job, backward
from anydevice.train.ranks import Ranks


class Strategy:
    """How ranks train one network: `Replicated` is "ddp", `Sharded` is "fsdp"."""

    is_sharded = False

    def __init__(self, ranks: Ranks, network: Any, forward: Forward, sums: bool) -> None:
        self.ranks, self.network, self._forward = ranks, network, forward
        self.wrapped = network
        self.sums = sums

    def forward(self, network: Any, portion: Portion) -> Result:
        """As the trial's own, for a part of a batch; the size is that of the rows that count."""
        loss, output, target, _ = self.outcome(portion.batch)
        if self.sums and portion.rows:  # estimates the sum over the whole batch
            loss = loss * (portion.whole / portion.rows)
        return Result(loss, output, target, portion.rows)

    def gradients(self, job: Job, group: list[Portion]) -> list[Result]:
        """As `loop.gradients`, of the whole batches."""
        return self.attempt(job, group)

    def attempt(self, job: Job, group: list[Portion]) -> list[Result]:
        """Gradients are averaged over the ranks in the backward pass of the last part."""
        results = []
        samples = sum(portion.whole for portion in group)
        for place, portion in enumerate(group, 1):
            with self.averaging(place == len(group)):
                with job.autocast:
                    result = job.forward(job.network, portion)
                self.before_backward()
                # Undoes the averaging over the ranks, and weights by rows.
                weight = self.ranks.world * portion.rows / (portion.whole if job.sums else samples)
                backward(job, result.loss, weight)
            results.append(result)
        return results

    def outcome(self, batch: Any) -> Result:
        """Network and loss of a batch."""
        return self._forward(self.network, batch)

    def averaging(self, last: bool) -> AbstractContextManager[Any]:
        """Whether gradients that come inside the block are averaged over the ranks."""
        raise NotImplementedError

    def before_backward(self) -> None:
        """Called between the forward and the backward pass of each part."""
