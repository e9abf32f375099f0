"""What can be planned: a program on disk, a function that trains, the steps of a Trial."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, Self

from torch.utils.data import Dataset

from anydevice.errors import UsageError
from anydevice.plan.cluster.command import Launched
from anydevice.plan.hollow.program import Program
from anydevice.plan.remedies import changes
from anydevice.train.data.batches import tensors_of
from anydevice.train.data.sets import Given
from anydevice.train.trial import Trial


class Subject(Protocol):
    """Something that trains and can be planned."""

    @property
    def name(self) -> str:
        """What an answer calls it."""

    @property
    def batch(self) -> int | None:
        """Its batch size, if known."""

    def with_batch(self, batch: int) -> Self:
        """The same with another batch size."""

    def __call__(self) -> object:
        """Trains. It need not end: the plan stops it after a few steps."""


def subject_of(
    given: Callable[..., object] | Trial | Launched,
    batch_arg: str | None,
    batch: int | None,
    *,
    together: bool = False,
) -> Subject:
    """What `ad.plan` is given, as a Subject; `together`: as one of several ranks."""
    if isinstance(given, Trial):
        steps = _trial_steps(given, batch_arg, batch)
        return RankOfTrial(steps.trial, steps.batch) if together else steps
    if isinstance(given, Launched):
        return Program(given.program, batch_arg)
    if isinstance(given, Program):
        return replace(given, batch_arg=batch_arg)
    if callable(given):
        return _function(given, batch_arg, batch)
    raise UsageError(f"expected a function that trains, got {given!r}.")


# ---- functions ----


@dataclass(frozen=True)
class Function:
    """A function that trains; `batch_arg` is its parameter for the batch size."""

    function: Callable[..., object]
    batch_arg: str | None = None
    batch: int | None = None

    @property
    def name(self) -> str:
        """`train`."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    def with_batch(self, batch: int) -> Function:
        """The same with another batch size."""
        return replace(self, batch=batch)

    def __call__(self) -> object:
        """Calls it."""
        return self.function(**({} if self.batch_arg is None else {self.batch_arg: self.batch}))


def _function(function: Callable[..., object], batch_arg: str | None, batch: int | None) -> Subject:
    subject = Function(function, batch_arg, batch)
    if batch_arg is None:
        return subject
    parameters = inspect.signature(function).parameters
    if batch_arg not in parameters:
        known = ", ".join(parameters) or "none"
        raise UsageError(
            f"expected a parameter of {subject.name} as batch_arg, got {batch_arg!r}: it has "
            f"{known}."
        )
    default = parameters[batch_arg].default
    first = batch or (default if isinstance(default, int) else None)
    if first is None:
        raise UsageError(
            f"expected a batch size to begin with, got none for {batch_arg} of {subject.name}: add "
            "batch=32, or a default to the function."
        )
    return subject.with_batch(first)


# ---- trials ----


@dataclass(frozen=True)
class TrialSteps:
    """The steps of a trial, on a copy of it: the trial itself stays as it is."""

    trial: Trial
    batch: int | None = None

    @property
    def name(self) -> str:
        """The network's class."""
        return type(self.trial.network).__name__

    def with_batch(self, batch: int) -> TrialSteps:
        """The same trial and data with another batch size."""
        other = copy.copy(self.trial)
        other.sets = replace(self.trial.sets, made={})
        train = replace(self.trial.sets.given["train"], batch_size=batch)
        other.sets.given = {**self.trial.sets.given, "train": train}
        return TrialSteps(other, batch)

    def __call__(self) -> None:
        """Takes steps until the plan stops it."""
        changes.as_it_is(self.trial)


@dataclass(frozen=True)
class RankOfTrial(TrialSteps):
    """The steps of a trial on one of several ranks, with its own strategy."""

    def __call__(self) -> None:
        """Trains, until the plan stops it."""
        self.trial.copied(changes.own_gpu()).run(changes.ENOUGH, verbose=False)


def _trial_steps(trial: Trial, batch_arg: str | None, batch: int | None) -> TrialSteps:
    given = trial.sets.given.get("train")
    if batch_arg not in (None, "batch_size") or (batch_arg and (not given or _in_batches(given))):
        raise UsageError(
            "expected batch_size as the batch_arg of a trial whose data comes without batches, got "
            f"{batch_arg!r}: give tensors or a Dataset to trial.with_generators()."
        )
    if given is None:
        raise UsageError(
            "expected a trial with data to train on, got none: give it by "
            "trial.with_generators(train)."
        )
    steps = TrialSteps(trial, given.batch_size if batch_arg else None)
    return steps.with_batch(batch) if batch else steps


def _in_batches(given: Given) -> bool:
    """Whether the data comes in batches already."""
    return tensors_of(given.data) is None and not isinstance(given.data, Dataset)
