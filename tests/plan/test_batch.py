"""The search for the largest batch, on hollow GPUs whose memory is a formula."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from anydevice.devices.catalogue import card
from anydevice.errors import UsageError
from anydevice.plan.batch import Largest, largest_batch
from anydevice.plan.context import Context
from anydevice.plan.hollow.failures import CannotPlanError, DoesNotFitError
from anydevice.plan.hollow.gpus import HollowGPUs
from anydevice.plan.hollow.run import HollowRun

ROOM = card("t4").memory


@dataclass(frozen=True)
class Batch:
    """A subject that only knows its batch size."""

    batch: int
    name: str = "made up"

    def with_batch(self, batch: int) -> "Batch":
        return replace(self, batch=batch)

    def __call__(self) -> None:
        raise AssertionError("these GPUs run nothing")


@dataclass
class Formula:
    """GPUs that need `need(batch)` bytes, for a program with `data` samples."""

    need: Callable[[int], int]
    data: int = 1 << 40
    tried: list[int] = field(default_factory=list)

    def run(self, subject: Batch, name: str) -> HollowRun:
        samples = min(subject.batch, self.data)
        need = self.need(samples)
        return HollowRun(
            *("t4", 1, 3, 3, need, need, need, Context.exactly(0), 0, samples, 0),
            blocks=[],
            step_marks=[],
            verdict="yes" if need <= ROOM else "no",
        )

    def run_if_it_fits(self, subject: Batch, name: str) -> HollowRun:
        self.tried.append(subject.batch)
        run = self.run(subject, name)
        if not run.fits:
            raise DoesNotFitError
        return run

    def largest(self, start: int) -> Largest:
        first = self.run(Batch(start), "")
        return largest_batch(Batch(start), cast(HollowGPUs, self), first, "--batch")


def linear(each: int, fixed: int = 1 << 30) -> Callable[[int], int]:
    return lambda batch: fixed + each * batch


def rounded(batch: int) -> int:
    """As an allocator's blocks of 2 MiB are."""
    return (1 << 30) + -(-batch * 700_001 // (2 << 20)) * (2 << 20)


def attention(batch: int) -> int:
    return (1 << 30) + 1000 * batch + 3 * batch**2


@pytest.mark.parametrize("start", [1, 32, 10_000, 100_000])
@pytest.mark.parametrize("need", [linear(1_000_000), linear(700_001), rounded, attention])
def test_the_largest_fits_and_the_next_does_not(need: Callable[[int], int], start: int) -> None:
    gpus = Formula(need)
    found = gpus.largest(start)
    assert need(found.batch) <= ROOM < need(found.batch + 1)
    assert found.runs == 1 + len(gpus.tried)
    assert len(set(gpus.tried)) == len(gpus.tried)


def test_where_memory_grows_evenly_few_runs_are_enough() -> None:
    assert Formula(linear(1_000_000)).largest(32).runs <= 5


def test_nothing_fits() -> None:
    assert Formula(linear(1, fixed=2 * ROOM)).largest(32).batch == 0


def test_all_data_may_fit() -> None:
    found = Formula(linear(1000), data=5000).largest(32)
    assert found.all_data
    assert found.batch == 5000


def test_a_batch_size_without_effect_is_refused() -> None:
    with pytest.raises(UsageError, match="got a program that does the same with 32 and 64"):
        Formula(linear(1000), data=7).largest(32)


def test_a_program_that_exits_with_the_option_is_an_error_with_its_line() -> None:
    gpus: Any = Formula(linear(1000))

    def run_if_it_fits(subject: Batch, name: str) -> HollowRun:
        raise CannotPlanError("it exited", "usage: …", ended_at="train.py:3")

    gpus.run_if_it_fits = run_if_it_fits
    with pytest.raises(CannotPlanError, match=r"with 64 for it, the program exited at train.py:3"):
        gpus.largest(32)
