"""Copies from the host to the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from anydevice.check.finding import (
    Change,
    Finding,
    Recurring,
    Rule,
    at,
    recurring,
    replacing,
    without,
)
from anydevice.check.tape import FACTORIES, MAKERS
from anydevice.check.trace import Seen, Trace
from anydevice.plan.time.work import HostTime, Op
from anydevice.text import size_text

SMALL = 4096  # bytes
FEW = 64  # bytes that a library sends, which are no batch


class PageableCopies(Rule):
    """A batch is copied from memory that is not pinned, so that the host waits for it."""

    name = "pageable-copy"
    kind = "slow"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each line that copies batches so."""

        def _is_pageable(one: Seen) -> bool:
            sent = one.sent
            waits = sent is not None and (sent.blocking or not sent.pinned)
            others = _is_small(one) or _is_again(one, trace)
            return waits and not others and not one.of_module

        for line in recurring(trace, _is_pageable):
            if any(map(_is_made, line.seen)) and any(map(line.is_new, line.seen)):
                continue
            size = sum(one.sent.bytes for one in line.seen if one.sent)
            pinned = all(one.sent.pinned for one in line.seen if one.sent)
            why = "waits for it, since non_blocking is not set" if pinned else "waits for it"
            yield self.of_line(
                line,
                f"{size_text(size)} come from {'pinned' if pinned else 'pageable'} memory, and the "
                f"host {why}.",
                _quicker(line, pinned),
                replacing(at(line, _is_pageable), _pinned),
            )


def _quicker(line: Recurring, pinned: bool) -> str:
    copy = "x.to(device, non_blocking=True)"
    if pinned:
        return copy
    if all(one.source is not None and one.source.loaded for one in line.seen):
        return f"DataLoader(…, pin_memory=True) and {copy}"
    return "make it on the GPU, or once for all steps; or x.pin_memory().to(…, non_blocking=True)"


def _is_again(one: Seen, trace: Trace) -> bool:
    return one.source is not None and one.source.tensor in trace.sent_again


def _pinned(one: Seen) -> Seen:
    return one.changed(pinned=True, blocking=False)


class SmallCopies(Rule):
    """Python's numbers are made a tensor on the GPU in each step: torch.tensor(…, device=…)."""

    name = "small-copy"
    kind = "slow"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each line that does."""
        for line in recurring(trace, _is_small):
            size = sum(one.sent.bytes for one in line.seen if one.sent)
            count = len(line.seen)
            yield self.of_line(
                line,
                f"A few numbers are sent to the GPU: {size_text(size)} in "
                f"{'one copy' if count == 1 else f'{count} copies'}, for which the host waits.",
                "make it once on the GPU, and use it again; or torch.full(…, device=device)",
                without(at(line, _is_small)),
            )


def _is_small(one: Seen) -> bool:
    """Whether it is of what the program has just made, not of a batch."""
    if one.sent is None or one.sent.bytes > SMALL:
        return False
    made = one.source is not None and one.source.made_by == "tensor"
    few = one.sent.bytes <= FEW and one.site.library is not None and not one.of_module
    return one.direct if not one.op else made or few


class MadeOnHost(Rule):
    """A tensor is made on the host and sent to the GPU, which could have made it."""

    name = "made-on-host"
    kind = "slow"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each line that sends what a factory of PyTorch made."""

        def is_made(one: Seen) -> bool:
            return _is_made(one) and not _is_again(one, trace)

        for line in recurring(trace, is_made):
            if not any(map(line.is_new, line.seen)):
                continue
            sources = [one.source for one in line.seen if one.source]
            made = sorted({f"torch.{one.made_by}" for one in sources if one.made_by in FACTORIES})
            size = sum(one.sent.bytes for one in line.seen if one.sent)
            yield self.of_line(
                line,
                f"{size_text(size)} are made on the host by {' and '.join(made)}, then sent to "
                "the GPU.",
                " and ".join(f"{name}(…, device=device)" for name in made),
                _made_there(line),
            )


def _is_made(one: Seen) -> bool:
    return one.sent is not None and one.source is not None and one.source.made_by in FACTORIES


def _made_there(line: Recurring) -> Change:
    """A kernel that writes it in place of the copy, and of the host's work to make it."""
    here = at(line, lambda one: True)
    made_on = {one.source.made_on for one in line.seen if one.source and _is_made(one)}

    def is_making(one: Seen) -> bool:
        there = here(one) or (one.site.own in made_on and one.op in MAKERS)
        return there and isinstance(one.entry, HostTime) and one.phase != "data"

    def change(step: list[Seen]) -> Iterator[Seen]:
        for one in step:
            if here(one) and one.sent and _is_made(one):
                sent = one.sent
                made = Op("fill_", sent.destination, sent.stream, "", (), sent.bytes, 1, False, 0)
                yield replace(one, entry=made)
            elif not is_making(one):
                yield one

    return change


class SentAgain(Rule):
    """The same tensor, with the same values, is sent to the GPU in each step."""

    name = "sent-again"
    kind = "slow"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each line that sends again what it has sent."""

        def is_again(one: Seen) -> bool:
            return one.sent is not None and not _is_small(one) and _is_again(one, trace)

        for line in recurring(trace, is_again):
            size = sum(one.sent.bytes for one in line.seen if one.sent)
            yield self.of_line(
                line,
                f"{size_text(size)} are sent that have been sent before, with the same values.",
                "send it once, before the loop",
                without(at(line, is_again)),
            )
