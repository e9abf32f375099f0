"""One run of a program under watch: hollow where it allows that, with values otherwise."""

from __future__ import annotations

import gc
import re
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from anydevice.check.cost import Prices
from anydevice.check.finding import Finding
from anydevice.check.rules import RULES
from anydevice.check.trace import Place, Site, Trace
from anydevice.check.watch import CheckWatch
from anydevice.devices.catalogue import card
from anydevice.devices.explain.explanation import annotate
from anydevice.frames import is_own, line_of
from anydevice.plan.hollow.isolated import isolated
from anydevice.plan.hollow.sandbox.checkpoints import sparse
from anydevice.plan.hollow.values import Branches, reads_answered
from anydevice.plan.hollow.watch import Enough
from anydevice.virtual.machine import virtual_gpus

FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
MOST_BYTES = 8 << 30  # on a GPU with values, which are this machine's memory


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


def run(
    program: Callable[[], object],
    name: str,
    kinds: Sequence[str],
    *,
    gpus: int = 1,
    hollow: bool | None = None,
    portable: bool = False,
    shown: bool = False,
) -> Checked:
    """Runs a program in a separate process and looks for mistakes.

    Args:
        program: What to call.
        name: What it is called.
        kinds: The kinds of GPU to price for; it runs on the newest.
        gpus: How many GPUs it sees.
        hollow: Whether they have no values. By default, if the program allows it.
        portable: Whether what fails without CUDA is a mistake.
        shown: Show what the program prints.
    """
    seen = max(kinds, key=lambda kind: card(kind).capability)
    waiting = f"{name} is still running on a virtual {seen}"

    def once(hollow: bool) -> Checked:
        watched = partial(_watched, program, name, seen, tuple(kinds), gpus, hollow, portable)
        return isolated(watched, shown=shown, waiting=waiting)

    if hollow is not None:
        return once(hollow)
    checked = once(True)
    if checked.unanswered and checked.peak <= MOST_BYTES:
        again = once(False)
        return again if not again.failure or checked.failure else checked
    return checked


def _watched(
    program: Callable[[], object],
    name: str,
    seen: str,
    kinds: tuple[str, ...],
    gpus: int,
    hollow: bool,
    portable: bool,
) -> Checked:
    """In the child: the run, then the rules, while the program's objects are there."""
    with virtual_gpus(gpus, seen, hollow=hollow):
        watch = CheckWatch(card(seen), hollow=hollow, stop=__file__)
        failed = _called(program, watch)
        trace = watch.trace()
        gc.collect()
        trace.facts["portable"] = portable
        checked = examined(trace, kinds)
        checked.peak = max(torch.cuda.max_memory_allocated(i) for i in range(gpus))
    _add_failure(checked, failed, name, trace)
    return checked


def examined(trace: Trace, kinds: Sequence[str]) -> Checked:
    """What the rules find in a trace, with prices."""
    found = [finding for rule in RULES for finding in rule.find(trace)]
    prices = Prices(trace, [card(kind) for kind in kinds])
    prices.set(found)
    found = [finding for finding in found if _is_worth_a_line(finding, prices.step)]
    fixed = prices.fixed(found)
    plain = [replace(finding, change=None, span=None) for finding in found]
    return Checked(plain, prices.step, fixed, len(trace.steps), trace.unit, trace.hollow)


def _is_worth_a_line(finding: Finding, step: dict[str, float]) -> bool:
    """Whether it costs what its rule asks for on any of the cards."""
    if not finding.seconds:
        return True
    costly = max(finding.seconds.values()) >= finding.least_seconds
    return costly and finding.share(step) >= finding.least


def _called(program: Callable[[], object], watch: CheckWatch) -> BaseException | None:
    """Runs the program to the end of the check; its error, if it failed."""
    branches = Branches(lambda: watch.steps.has_stepped)
    try:
        with ExitStack() as stack:
            if watch.hollow:
                stack.enter_context(sparse())
                stack.enter_context(reads_answered(branches, watch.sizes.known))
            stack.enter_context(watch.watching())
            program()
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
    annotate(error)
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith("anydevice: ")]
    text = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    if notes:
        what, _, fix = notes[0].removeprefix("anydevice: ").partition("\n  Fix: ")
        checked.findings.insert(
            0,
            Finding("device-error", "error", f"{text} {what}", fix, _site(error)),
        )
        return
    checked.unanswered = checked.hollow and not isinstance(error, torch.OutOfMemoryError)
    where = line_of(error) or name
    checked.failure = f"{where}: {text}"
    checked.details = "".join(traceback.format_exception(error))


def _site(error: BaseException) -> Site:
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
