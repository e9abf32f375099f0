"""`ad.check()`: mistakes and hidden costs of a program, found by a run on a virtual GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from anydevice.check.report import Report
from anydevice.check.run import Job, run
from anydevice.check.session import Session
from anydevice.check.settings import Settings, settings_of
from anydevice.devices.catalogue import card
from anydevice.errors import UsageError
from anydevice.plan.cluster.world import World
from anydevice.plan.hollow.failures import CannotPlanError
from anydevice.plan.hollow.steps import STEP, UPDATE
from anydevice.plan.subjects import Subject, subject_of
from anydevice.train.trial import Trial

TRAINING = (STEP, UPDATE)


@overload
def check(
    function: None = None,
    gpus: str | Sequence[str] = "h100",
    *,
    ignore: Sequence[str] = (),
    fail_on: Sequence[str] = (),
    num_gpus: int | None = None,
    hollow: bool | None = None,
    quiet: bool = True,
) -> Session: ...
@overload
def check(
    function: Callable[..., object] | Trial,
    gpus: str | Sequence[str] = "h100",
    *,
    ignore: Sequence[str] = (),
    fail_on: Sequence[str] = (),
    num_gpus: int | None = None,
    hollow: bool | None = None,
    quiet: bool = True,
) -> Report: ...
def check(
    function: Callable[..., object] | Trial | None = None,
    gpus: str | Sequence[str] = "h100",
    *,
    ignore: Sequence[str] = (),
    fail_on: Sequence[str] = (),
    num_gpus: int | None = None,
    hollow: bool | None = None,
    quiet: bool = True,
) -> Report | Session:
    """Finds device mistakes and hidden costs, each with its line and what it costs on each card.

    Some steps run in a separate process on virtual GPUs: this process and the disk stay as they
    are, and no real GPU is needed.

    Args:
        function: A function that trains and takes no required arguments; or a Trial with data.
            Without it, `with ad.check() as report:` watches a block in this process.
        gpus: The kinds of GPU to find costs for; `anydevice devices --known` lists them. The
            program sees the first.
        ignore: Rules whose findings are left out.
        fail_on: What `report.fails` is about: "error", "slow", "memory", or a share of a step such
            as "slow:2%"; by default all of them.
        num_gpus: How many GPUs the function sees. By default as many as it asks for.
        hollow: Whether the GPUs have no values, which is quicker. By default they have none where
            the function needs none.
        quiet: Leave out what the function prints.

    Returns:
        A Report, which shows itself as a table in a terminal and in a notebook; or a context
        manager that gives one, which is complete when the block has ended.

    Raises:
        UsageError: If an argument makes no sense, or if the function fails for a reason that has
            nothing to do with GPUs before its first step is done.

    Example:
        >>> report = ad.check(train, ["t4", "h100"])  # doctest: +SKIP
        >>> report.fails, report.step["t4"], report.fixed["t4"]  # doctest: +SKIP
        (True, 0.0405, 0.0281)
    """
    wanted = [gpus] if isinstance(gpus, str) else list(gpus)
    settings = settings_of(None, ignore=ignore, fail_on=fail_on, gpus=wanted)
    if function is None:
        return Session([card(gpu).kind for gpu in wanted], settings)
    subject = subject_of(function, None, None)
    return checked(subject, settings, num_gpus=num_gpus, hollow=hollow, quiet=quiet)


def checked(
    subject: Subject,
    settings: Settings,
    *,
    num_gpus: int | None = None,
    world: World | None = None,
    hollow: bool | None = None,
    portable: bool = False,
    quiet: bool = True,
) -> Report:
    """The report about a subject of `anydevice.plan.subjects`."""
    kinds = tuple(dict.fromkeys(card(gpu).kind for gpu in settings.gpus))
    if not kinds or (num_gpus is not None and num_gpus < 1):
        raise UsageError(f"expected at least one GPU and one kind, got {num_gpus} and {kinds}.")
    job = Job(subject, subject.name, kinds, num_gpus, world, portable)
    found = run(job, hollow=hollow, shown=not quiet)
    if found.failure and not found.findings and (not found.steps or found.unit not in TRAINING):
        raise CannotPlanError(f"expected a program that runs, got {found.failure}", found.details)
    if found.failure:
        found.notes.append(f"The program failed at {found.failure}. The findings are until then.")
    return Report.of(subject.name, settings, found)
