"""One run of a program under watch: hollow where it allows that, with values otherwise."""

from __future__ import annotations

import gc
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from anydevice.check.cost import Prices
from anydevice.check.failures import explained_error
from anydevice.check.finding import Finding
from anydevice.check.rules import RULES
from anydevice.check.trace import Place, Site, Trace
from anydevice.check.watch import CheckWatch
from anydevice.devices.catalogue import card
from anydevice.devices.explain.explanation import annotate
from anydevice.frames import is_own, line_of
from anydevice.plan.cluster.rank import playing
from anydevice.plan.cluster.roles import Roles
from anydevice.plan.cluster.world import World
from anydevice.plan.hollow.failures import CannotPlanError, own_traceback
from anydevice.plan.hollow.isolated import isolated
from anydevice.plan.hollow.sandbox.checkpoints import sparse
from anydevice.plan.hollow.values import Branches, reads_answered
from anydevice.plan.hollow.watch import Enough
from anydevice.plan.time.spans import step_timeline
from anydevice.plan.time.work import Exchange, Work
from anydevice.text import duration_text
from anydevice.virtual.machine import virtual_gpus

FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
ORDINAL = "invalid device ordinal"
MOST_GPUS = 8
MOST_BYTES = 8 << 30  # on a GPU with values, which are this machine's memory


@dataclass(frozen=True)
class Job:
    """What is to be checked.

    Attributes:
        program: What to call.
        name: What it is called.
        kinds: The kinds of GPU to find costs for; it runs on the newest.
        gpus: How many GPUs it sees; None: as many as it asks for.
        world: The ranks that its launcher would start.
        portable: Whether what fails without CUDA is a mistake.
    """

    program: Callable[[], object]
    name: str
    kinds: tuple[str, ...]
    gpus: int | None = None
    world: World | None = None
    portable: bool = False

    @property
    def newest(self) -> str:
        """The kind that the program sees."""
        return newest_of(self.kinds)

    @property
    def count(self) -> int:
        """How many GPUs it sees."""
        return self.world.gpus if self.world else self.gpus or 1


def newest_of(kinds: Sequence[str]) -> str:
    """The kind that can do the most: attention and dtypes are chosen by it."""
    return max(kinds, key=lambda kind: card(kind).capability)


@dataclass
class Checked:
    """What a run found, as plain data."""

    findings: list[Finding]
    step: dict[str, float] = field(default_factory=dict)
    fixed: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    unit: str = "step"
    hollow: bool = True
    peak: int = 0
    notes: list[str] = field(default_factory=list)
    failure: str = ""  # of the program itself, in a sentence
    details: str = ""  # its traceback
    unanswered: bool = False  # whether values would say more
    collectives: list[tuple[str, Site]] = field(default_factory=list)  # in order
    timelines: dict[str, Any] = field(default_factory=dict)  # of a step, by kind of GPU


def run(job: Job, *, hollow: bool | None = None, shown: bool = False) -> Checked:
    """Runs a program in a separate process and looks for mistakes.

    Args:
        job: What is checked.
        hollow: Whether its GPUs have no values. By default, if the program allows it.
        shown: Show what the program prints.
    """
    if job.world and job.world.size > 1:
        return _of_ranks(job, shown)
    if hollow is not None:
        return _once(job, hollow, shown)
    checked = _once(job, True, shown)
    if ORDINAL in checked.failure + checked.details and not job.gpus and checked.unanswered:
        return run(replace(job, gpus=MOST_GPUS), shown=shown)
    if checked.unanswered and checked.peak <= MOST_BYTES:
        again = _once(job, False, shown)
        return again if not again.failure or checked.failure else checked
    return checked


def _once(job: Job, hollow: bool, shown: bool) -> Checked:
    return isolated(partial(_watched, job, hollow, 0), shown=shown, waiting=_waiting(job))


def _of_ranks(job: Job, shown: bool) -> Checked:
    """What two ranks found, which run at the same time, for the objects that they send."""
    roles = Roles(
        partial(_watched, job, True), lambda rank, checked: (), shown=shown, waiting=_waiting(job)
    )
    try:
        roles.all((0, 1))
    except CannotPlanError:
        if 0 not in roles.runs:
            raise
    first = roles.runs[0]
    return _of_both(first, roles.runs[1]) if 1 in roles.runs else first


def _waiting(job: Job) -> str:
    return f"{job.name} is still running on a virtual {job.newest}"


def _of_both(first: Checked, second: Checked) -> Checked:
    """What both ranks found, and whether they meet in the same collectives."""
    known = {(finding.rule, finding.site.own) for finding in first.findings}
    first.findings += [f for f in second.findings if (f.rule, f.site.own) not in known]
    if first.failure or second.failure:
        return first
    for (name, site), (other, elsewhere) in zip(
        first.collectives, second.collectives, strict=False
    ):
        if name != other:
            first.findings.append(
                Finding(
                    "collective-order",
                    "error",
                    f"Rank 0 calls {name} here, where rank 1 calls {other} at {elsewhere}: on "
                    "cards, they wait for each other for ever.",
                    "the same collectives in the same order on all ranks",
                    site,
                )
            )
            break
    return first


def _watched(job: Job, hollow: bool, rank: int) -> Checked:
    """In the child: the run, then the rules, while the program's objects are there."""
    kind = card(job.newest)
    with virtual_gpus(job.count, kind.kind, hollow=hollow):
        watch = CheckWatch(kind, hollow=hollow, stop=__file__)
        failed = _called(job, watch, rank)
        annotate(failed)
        trace = watch.trace()
        gc.collect()
        trace.facts |= {"portable": job.portable, "rank": rank % job.count if job.world else None}
        checked = examined(trace, job.kinds, job.count)
        checked.peak = max(torch.cuda.max_memory_allocated(i) for i in range(job.count))
    _add_failure(checked, failed, job.name, trace)
    return checked


def examined(trace: Trace, kinds: Sequence[str], gpus: int = 1) -> Checked:
    """What the rules find in a trace, with prices."""
    trace.facts["smallest"] = min(card(kind).memory for kind in kinds)
    found = [finding for rule in RULES for finding in rule.find(trace)]
    prices = Prices(trace, [card(kind) for kind in kinds], gpus)
    prices.set(found)
    found = list(_worth_a_line(found, prices))
    mistakes = [finding for finding in found if not finding.hint]
    fixed = prices.fixed(mistakes)
    prices.set_together(mistakes, fixed)
    plain = [replace(finding, change=None, span=None) for finding in found]
    checked = Checked(plain, prices.step, fixed, len(trace.steps), trace.unit, trace.hollow)
    checked.notes += _slow_workers(trace, checked.step)
    if trace.steps and not any(one.launched for one in trace.seen):
        checked.notes.append("The program does nothing on a GPU.")
    if usual := trace.usual:
        work = Work([one.entry for one in trace.work(usual)])
        for kind in kinds:
            drawn = step_timeline(work, card(kind), gpus=gpus).to_dict()
            checked.timelines[card(kind).kind] = drawn
    met = (one for one in trace.seen if isinstance(one.entry, Exchange))
    checked.collectives = [(one.entry.name, one.site) for one in met]  # type: ignore[union-attr]
    return checked


def _slow_workers(trace: Trace, step: dict[str, float]) -> Iterator[str]:
    """A note on each loader whose workers together are slower here than a step."""
    quickest = min(step.values(), default=0.0)
    for seconds, workers in dict.fromkeys(trace.facts.get("beside", {}).values()):
        if workers > 1 and seconds / workers > 1.1 * quickest > 0:
            yield (
                f"On this machine, a worker makes a batch in {duration_text(seconds)}: with "
                f"{workers} of them there is one every {duration_text(seconds / workers)}."
            )


def _worth_a_line(found: Sequence[Finding], prices: Prices) -> Iterator[Finding]:
    """Those that cost what their rules ask for on any of the cards, now or once these are fixed."""
    worth = {id(finding) for finding in found if _is_worth_it(finding, prices.step)}
    mistakes = [finding for finding in found if id(finding) in worth and not finding.hint]
    left = prices.fixed(mistakes)
    for finding in found:
        if id(finding) in worth:
            yield finding
        elif mistakes and not finding.hint and finding.of_each_step:
            fixed = prices.fixed([*mistakes, finding])
            saved = {gpu: left[gpu] - fixed[gpu] for gpu in left}
            if _is_worth_it(replace(finding, seconds=saved), left):
                yield finding


def _is_worth_it(finding: Finding, step: dict[str, float]) -> bool:
    if not finding.seconds or finding.kind == "memory":
        return True
    costly = max(finding.seconds.values()) >= finding.least_seconds
    return costly and finding.share(step) >= finding.least


def _called(job: Job, watch: CheckWatch, rank: int) -> BaseException | None:
    """Runs the program to the end of the check; its error, if it failed."""
    branches = Branches(lambda: watch.steps.has_stepped)
    try:
        with ExitStack() as stack:
            if watch.hollow:
                stack.enter_context(playing(job.world, rank))
                stack.enter_context(sparse())
                stack.enter_context(reads_answered(branches, watch.sizes.known))
            stack.enter_context(watch.watching())
            job.program()
    except (Enough, KeyboardInterrupt) as end:
        return None if isinstance(end, Enough) else end
    except SystemExit as end:
        return end if end.code else None
    except BaseException as error:
        return error
    return None


def _add_failure(checked: Checked, error: BaseException | None, name: str, trace: Trace) -> None:
    """An error that a card would raise is a finding; any other is the program's own."""
    if error is None:
        return
    text = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    checked.details = own_traceback(error)
    absent = ORDINAL in checked.details
    if not absent and (explained := explained_error(error)):
        rule, what, fix = explained
        site = failing_site(error)
        checked.findings.insert(0, Finding(rule, "error", f"{text}. {what}", fix, site))
        return
    checked.unanswered = checked.hollow and not isinstance(error, torch.OutOfMemoryError)
    checked.failure = f"{line_of(error) or name}: {text}"


def failing_site(error: BaseException) -> Site:
    """The line of the program that an error came from, and those that called it."""
    frames: list[Place] = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if code.co_filename == __file__:
            frames.clear()
        elif is_own(code.co_filename):
            frames.insert(0, Place(code.co_filename, line, code.co_name))
    return Site(_in_a_worker(error) or tuple(frames))


def _in_a_worker(error: BaseException) -> tuple[Place, ...]:
    """The line in a DataLoader's worker, whose traceback is in the error's text."""
    text = str(error).partition("Original Traceback")[2]
    found = [Place(m[1], int(m[2]), m[3]) for m in FRAME.finditer(text) if is_own(m[1])]
    return tuple(reversed(found))
