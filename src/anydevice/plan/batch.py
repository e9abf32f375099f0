"""The largest batch that fits a card: found by a few hollow runs, since memory grows evenly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from anydevice.errors import UsageError
from anydevice.plan.hollow.run import Run

MOST = 1 << 24
STEP_BACK = 0.03  # where what was foretold does not fit, a little less may; then twice as much less
STEP_BACK_FAR = 0.9
LEAP = 8  # how many times larger the next batch is, while the peak does not depend on it


@dataclass(frozen=True)
class Largest:
    """`batch` fits and the next does not; 0 if none fits; `all_data` if no more data comes."""

    batch: int
    runs: int
    all_data: bool = False


class Search:
    """Tries batch sizes with `run`, which is None where a batch does not fit."""

    def __init__(self, run: Callable[[int], Run | None], capacity: int, option: str) -> None:
        self.capacity = capacity
        self.option = option
        self.tried: dict[int, Run | None] = {}
        self._run = run
        self._less = STEP_BACK

    def largest(self, start: int, first: Run) -> Largest:
        """From the run of a first guess: as far as the growth of memory foretells."""
        self.tried[start] = first if first.fits else None
        share = 2 if first.fits else STEP_BACK_FAR * self.capacity / first.allocated
        self._fits(max(1, int(share * start)))
        while not self._is_done():
            self._fits(self._next())
        if self._full():
            return Largest(self._all_data(), len(self.tried), all_data=True)
        return Largest(max(self._fitting(), default=0), len(self.tried))

    def _fits(self, batch: int) -> bool:
        if batch not in self.tried:
            self.tried[batch] = self._run(batch)
            self._refuse_no_growth()
        return self.tried[batch] is not None

    def _fitting(self) -> list[int]:
        return sorted(batch for batch, run in self.tried.items() if run)

    def _too_large(self) -> int | None:
        return min((batch for batch, run in self.tried.items() if not run), default=None)

    def _is_done(self) -> bool:
        least, most = self._too_large(), max(self._fitting(), default=0)
        return most >= MOST or self._full() or (least is not None and least <= most + 1)

    def _next(self) -> int:
        """Between the largest that fits and the smallest that does not."""
        fitting, least = self._fitting(), self._too_large()
        if not fitting:
            assert least
            return max(1, least // 2)
        most = fitting[-1]
        if least is not None and len(fitting) < 2:
            return (most + least) // 2
        foretold = self._foretold()
        if least is None:
            return min(max(foretold, most + 1), MOST)
        if foretold >= least:
            foretold = max(int(least * (1 - self._less)), (most + least) // 2)
            self._less *= 2
        return min(max(foretold, most + 1), least - 1)

    def _foretold(self) -> int:
        """Where the line through the two largest that fit meets the card's memory."""
        few, many = self._fitting()[-2:]
        growth = (self._need(many) - self._need(few)) / (many - few)
        if growth <= 0:
            return LEAP * many
        return many + int((self.capacity - self._need(many)) / growth)

    def _need(self, batch: int) -> int:
        run = self.tried[batch]
        assert run
        return run.allocated

    def _full(self) -> bool:
        """Whether a larger batch was asked for than came: the data has no more."""
        fitting = self._fitting()
        if len(fitting) < 2:
            return False
        few, many = (self.tried[batch] for batch in fitting[-2:])
        assert few
        assert many
        return few.samples == many.samples and few.requested == many.requested

    def _all_data(self) -> int:
        """How many samples came when more were asked for, where the program's batches tell."""
        less, enough, asked = self._fitting()[-3:]  # two alone are refused
        run = self.tried[asked]
        known = run and run.samples and less < run.samples <= enough
        return run.samples if run and run.samples and known else asked

    def _refuse_no_growth(self) -> None:
        if len(self._fitting()) == 2 and self._full():
            sizes = " and ".join(map(str, self._fitting()))
            raise UsageError(
                f"expected a batch size in {self.option}, got a program that does the same with "
                f"{sizes}: name what sets its batch size, or give it more data than that."
            )
