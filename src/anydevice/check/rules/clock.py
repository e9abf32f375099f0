"""Time that is measured before the GPU is done."""

from __future__ import annotations

from collections.abc import Iterator

from anydevice.check.finding import Finding, Rule
from anydevice.check.source import clocks_subtracted
from anydevice.check.trace import Call, Seen, Trace
from anydevice.text import counted

FEWEST = 3  # kernels
WRONG = 0.2  # of the kernels' launches come after the last wait


class TimedTooEarly(Rule):
    """A time is measured around work of the GPU without waiting for it."""

    name = "timed-without-synchronize"
    kind = "error"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each pair of lines, once."""
        read: dict[object, list[Call]] = {}
        found = set[tuple[object, object]]()
        for call in trace.named("clock"):
            before = read.setdefault(call.info["frame"], [])
            begun = _begun(call, before)
            before.append(call)
            if begun is None:
                continue
            between = trace.seen[begun.at : call.at]
            launched = _after_the_last_wait(between)
            whole = sum(one.launched is not None for one in between)
            key = begun.site.own, call.site.own
            if launched and launched >= WRONG * whole and launched >= FEWEST and key not in found:
                found.add(key)
                yield self.finding(
                    f"The time since line {begun.site.line} is that of launching: "
                    f"{counted(launched, 'kernel')} may still be running.",
                    "torch.cuda.synchronize() before both times, or torch.cuda.Event",
                    call.site,
                )


def _begun(call: Call, before: list[Call]) -> Call | None:
    """The reading of a clock that is subtracted from this one.

    None if there is none, or if it is of the loop's turn before: such times are right on average.
    """
    assigned = clocks_subtracted(*call.site.own)
    if not assigned or max(assigned) >= call.site.line:
        return None
    return next((one for one in reversed(before) if one.site.line in assigned), None)


def _after_the_last_wait(between: list[Seen]) -> int:
    count = 0
    for one in between:
        if one.waits:
            count = 0
        elif one.launched is not None:
            count += 1
    return count
