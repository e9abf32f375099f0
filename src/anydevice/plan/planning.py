"""`ad.plan()` and `anydevice plan`: a program's first steps on each card, and what they tell."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch.utils.data import Dataset

from anydevice.devices.catalogue import card
from anydevice.errors import UsageError
from anydevice.plan.answer import Plan, Verdict
from anydevice.plan.batch import Largest, Search
from anydevice.plan.hollow.failures import CannotPlanError, unknown_batch_argument
from anydevice.plan.hollow.isolated import isolated
from anydevice.plan.hollow.program import Program
from anydevice.plan.hollow.run import Run, hollow_run
from anydevice.plan.remedies.search import steps_of, try_remedies
from anydevice.plan.time.predict import predict
from anydevice.train.data.batches import tensors_of
from anydevice.train.data.sets import Given
from anydevice.train.trial import Trial

Subject = Callable[..., object]
Trying = Callable[..., Run | None]
Made = Callable[[int | None], Callable[[], object]]  # the program with this batch size
Described = tuple[str, Made, int | None]  # its name, itself, and its first batch size if known


def plan(
    function: Subject | Trial,
    gpus: str | Sequence[str] = "h100",
    *,
    steps: int = 3,
    batch_arg: str | None = None,
    batch: int | None = None,
    assume_zeros: bool = False,
    remedies: bool | None = None,
    cards: int = 2,
) -> Plan:
    """Whether a training function fits these GPUs, and what holds the memory.

    >>> ad.plan(train, gpus=["t4", "a100-80gb"], batch_arg="batch_size", batch=32)

    The function runs in a forked process on GPUs that are not there, until `steps` steps of an
    optimizer are done. With `batch_arg`, its parameter that is the batch size, the largest batch
    that fits is found too.

    Of a Trial, ways to need less memory are tried where it does not fit, or always or never as
    `remedies` says; some of them on several `cards`.
    """
    kinds = list(dict.fromkeys(card(gpu).kind for gpu in _listed(gpus)))
    if steps < 1 or not kinds:
        raise UsageError(f"expected at least one step and one GPU, got {steps} and {kinds}.")
    if isinstance(function, Trial):
        name, made, first = _made_of_trial(function, batch_arg, batch)
    else:
        name, made, first = _made(function, batch_arg, batch)
    verdicts = []
    for gpu in kinds:
        trying = partial(_tried, name=name, gpu=gpu, steps=steps, assume_zeros=assume_zeros)
        run = trying(made(first))
        assert run
        verdict = Verdict(run)
        if run.work is not None:
            verdict.time = predict(run.work, run.card, samples=run.samples)
        if batch_arg is not None:
            verdict.largest = _largest(run, made, trying, batch_arg, first or run.samples or 1)
        if isinstance(function, Trial) and (remedies or (remedies is None and not run.fits)):
            verdict.remedies = try_remedies(
                function, gpu, cards=cards, run=run, assume_zeros=assume_zeros
            )
        verdicts.append(verdict)
    return Plan(name, verdicts)


def _made_of_trial(trial: Trial, batch_arg: str | None, batch: int | None) -> Described:
    """A trial's steps, on a copy of it: the trial itself stays as it is."""
    given = trial.sets.given.get("train")
    if batch_arg not in (None, "batch_size") or (batch_arg and (not given or _in_batches(given))):
        raise UsageError(
            "expected batch_size as the batch_arg of a trial whose data comes without batches, got "
            f"{batch_arg!r}: give tensors or a Dataset to trial.with_generators()."
        )

    def with_batch(size: int | None) -> Callable[[], object]:
        if size is None or given is None:
            return steps_of(trial)
        other = copy.copy(trial)
        other.sets = replace(trial.sets, made={})
        other.sets.given = {**trial.sets.given, "train": replace(given, batch_size=size)}
        return steps_of(other)

    first = batch or (given.batch_size if batch_arg and given else None)
    return type(trial.network).__name__, with_batch, first


def _in_batches(given: Given) -> bool:
    """Whether the data has a batch size of its own."""
    return tensors_of(given.data) is None and not isinstance(given.data, Dataset)


def _largest(run: Run, made: Made, trying: Trying, batch_arg: str, start: int) -> Largest:
    def fitting(batch: int) -> Run | None:
        try:
            return trying(made(batch), only_if_it_fits=True)
        except CannotPlanError as error:
            if error.ended_at:
                raise unknown_batch_argument(batch_arg, batch, error) from error
            raise

    return Search(fitting, run.card.memory - run.context, batch_arg).largest(start, run)


def _tried(
    function: Callable[[], object],
    *,
    name: str,
    gpu: str,
    steps: int,
    assume_zeros: bool,
    only_if_it_fits: bool = False,
) -> Run | None:
    running = partial(
        hollow_run,
        function,
        gpu,
        steps=steps,
        assume_zeros=assume_zeros,
        name=name,
        only_if_it_fits=only_if_it_fits,
    )
    return isolated(running)


def _made(function: Any, batch_arg: str | None, batch: int | None) -> Described:
    """The program's name, the program with any batch size, and the first size if it is known."""
    if isinstance(function, Program):
        program = function
        if batch_arg is None:
            return program.name, lambda size: program, None
        first = program.batch(batch_arg)
        return program.name, lambda size: _with_batch(program, batch_arg, size), first
    if not callable(function):
        raise UsageError(f"expected a function that trains, got {function!r}.")
    name = getattr(function, "__name__", type(function).__name__)
    if batch_arg is None:
        return name, lambda size: function, None
    default = _default(function, batch_arg, name)
    first = batch or default
    if first is None:
        raise UsageError(
            f"expected a batch size to begin with, got none for {batch_arg} of {name}: add "
            "batch=32, or a default to the function."
        )
    return name, lambda size: partial(function, **{batch_arg: size}), first


def _with_batch(program: Program, batch_arg: str, size: int | None) -> Program:
    return program if size is None else program.with_batch(batch_arg, size)


def _default(function: Subject, batch_arg: str, name: str) -> int | None:
    parameters = inspect.signature(function).parameters
    if batch_arg not in parameters:
        known = ", ".join(parameters) or "none"
        raise UsageError(
            f"expected a parameter of {name} as batch_arg, got {batch_arg!r}: it has {known}."
        )
    default = parameters[batch_arg].default
    return default if isinstance(default, int) else None


def _listed(gpus: str | Sequence[str]) -> list[str]:
    return [gpus] if isinstance(gpus, str) else list(gpus)
