"""The largest batch that fits a card: found by a few hollow runs, since memory grows linearly."""

from __future__ import annotations

from dataclasses import dataclass, field

from anydevice.errors import UsageError
from anydevice.plan.hollow.failures import (
    CannotPlanError,
    DoesNotFitError,
    unknown_batch_argument,
)
from anydevice.plan.hollow.gpus import HollowGPUs
from anydevice.plan.hollow.run import HollowRun
from anydevice.plan.subjects import Subject

MOST = 1 << 24
STEP_BACK = 0.03  # if a predicted batch does not fit, try this much less; next time, twice that
STEP_BACK_FAR = 0.9
ALLOCATED, RESERVED = 0, 1
FULL = 0.998
LEAP = 8  # how many times larger the next batch is, while the peak does not depend on it


@dataclass(frozen=True)
class Largest:
    """The largest batch that fits.

    Attributes:
        batch: This batch size fits and the next does not; 0 if none fits.
        runs: How many hollow runs it took to find it.
        all_data: Whether `batch` is all the data there is, and might be larger with more data.
    """

    batch: int
    runs: int
    all_data: bool = False


def largest_batch(subject: Subject, gpus: HollowGPUs, first: HollowRun, option: str) -> Largest:
    """Searches from the subject's first run, which may fit or not.

    `option` is what the user calls the batch size, for errors.
    """
    capacity = first.card.memory - first.context.high
    search = _Search(subject, gpus, option, capacity)
    return search.largest(subject.batch or first.samples or 1, first)


@dataclass
class _Search:
    """The batch sizes tried so far: the runs of those that fit, and the smallest that does not."""

    subject: Subject
    gpus: HollowGPUs
    option: str
    capacity: int
    fitting: dict[int, HollowRun] = field(default_factory=dict)
    too_large: int | None = None
    points: dict[int, tuple[int, int]] = field(default_factory=dict)  # allocated and reserved
    runs: int = 1
    less: float = STEP_BACK
    step: int = 1

    def largest(self, start: int, first: HollowRun) -> Largest:
        """Tries what the growth of memory predicts, until the next larger batch does not fit."""
        self.points[start] = first.allocated, first.reserved
        if first.fits:
            self.fitting[start] = first
            self._try(2 * start)
        else:
            self.too_large = start
            self._try(max(1, int(STEP_BACK_FAR * self.capacity / first.allocated * start)))
        while not self._is_done():
            self._try(self._next())
        if self._is_all_data():
            return Largest(self._all_data(), self.runs, all_data=True)
        return Largest(max(self.fitting, default=0), self.runs)

    def _try(self, batch: int) -> None:
        if batch in self.fitting or batch == self.too_large:
            return
        self.runs += 1
        try:
            run = self.fitting[batch] = self._run(batch)
            self.points[batch] = run.allocated, run.reserved
        except DoesNotFitError:
            self.too_large = min(batch, self.too_large or batch)
        if len(self.fitting) == 2 and self._is_all_data():
            sizes = " and ".join(map(str, sorted(self.fitting)))
            raise UsageError(
                f"expected a batch size in {self.option}, got a program that does the same with "
                f"{sizes}: name what sets its batch size, or give it more data than that."
            )

    def _run(self, batch: int) -> HollowRun:
        try:
            return self.gpus.run_if_it_fits(self.subject.with_batch(batch), self.subject.name)
        except CannotPlanError as error:
            if error.ended_at:
                raise unknown_batch_argument(self.option, batch, error) from error
            raise

    def _is_done(self) -> bool:
        most = max(self.fitting, default=0)
        closed = self.too_large is not None and self.too_large <= most + 1
        return closed or most >= MOST or self._is_all_data()

    def _next(self) -> int:
        """A batch between the largest that fits and the smallest that does not."""
        most, least = max(self.fitting, default=0), self.too_large
        if least is None:
            return min(max(self._predicted(), most + 1), MOST)
        if not most:
            return max(1, least // 2)
        if len(self.points) < 2:
            return (most + least) // 2
        for predicted in (self._predicted(), self._predicted(RESERVED)):
            if most < predicted < least:
                return predicted
        if most in self.points and self.points[most][RESERVED] > FULL * self.capacity:
            self.step *= 2  # little more fits
            return min(most + self.step // 2, least - 1)
        less = max(int(least * (1 - self.less)), (most + least) // 2)
        self.less *= 2
        return min(max(less, most + 1), least - 1)

    def _predicted(self, kind: int = ALLOCATED) -> int:
        """Where the line through the two largest batches meets the card's memory.

        What is reserved is that of batches that fit: with more memory than it needs, the allocator
        keeps more.
        """
        known = self.points if kind == ALLOCATED or len(self.fitting) < 2 else self.fitting
        few, many = sorted(known)[-2:]
        need = self.points[many][kind]
        growth = (need - self.points[few][kind]) / (many - few)
        if growth <= 0:
            return LEAP * many
        return many + int((self.capacity - need) / growth)

    def _is_all_data(self) -> bool:
        """Whether the program has no more data: it was asked for a larger batch and used none."""
        if len(self.fitting) < 2:
            return False
        few, many = (self.fitting[batch] for batch in sorted(self.fitting)[-2:])
        return few.samples == many.samples and few.requested == many.requested

    def _all_data(self) -> int:
        """How many samples the program used when it was asked for more, if its batches show it."""
        less, enough, asked = sorted(self.fitting)[-3:]  # after only two, it is an error
        came = self.fitting[asked].samples
        return came if came and less < came <= enough else asked
