"""Time that is measured before the GPU is done."""

from __future__ import annotations

from collections.abc import Iterator

from anydevice.check.finding import Finding, Rule
from anydevice.check.trace import Call, Seen, Trace
from anydevice.text import counted

WRONG = 0.2  # of the kernels' launches come after the last wait


class TimedTooEarly(Rule):
    """A time is measured around work of the GPU without waiting for it."""

    name = "timed-without-synchronize"
    kind = "error"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each pair of lines, once."""
        last: dict[object, Call] = {}
        found = set[tuple[object, object]]()
        for call in trace.named("clock"):
            begun = last.get(call.info["frame"])
            last[call.info["frame"]] = call
            if begun is None or begun.site.own[1] >= call.site.own[1]:
                continue  # the time of a whole turn of a loop is right on average
            between = trace.seen[begun.at : call.at]
            launched = _after_the_last_wait(between)
            whole = sum(one.launched is not None for one in between)
            key = begun.site.own, call.site.own
            if launched and launched >= WRONG * whole and launched >= 3 and key not in found:
                found.add(key)
                yield self.finding(
                    f"The time since line {begun.site.line} is that of launching: "
                    f"{counted(launched, 'kernel')} may still be running.",
                    "torch.cuda.synchronize() before both times, or torch.cuda.Event",
                    call.site,
                )


def _after_the_last_wait(between: list[Seen]) -> int:
    count = 0
    for one in between:
        if one.waits:
            count = 0
        elif one.launched is not None:
            count += 1
    return count
