"""The host and the GPU, or two streams, use memory at the same time."""

from __future__ import annotations

from collections.abc import Iterator

from anydevice.check.finding import Finding, Rule
from anydevice.check.trace import Trace


class ReadTooEarly(Rule):
    """The host reads a non_blocking copy before it has arrived."""

    name = "read-before-arrival"
    kind = "error"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each line that reads, once."""
        for copy, read in dict.fromkeys(trace.facts.get("early_reads", ())):
            yield self.finding(
                f"What {copy} copies to the host with non_blocking=True is read here, with no wait "
                "in between: on a card, it may not have arrived.",
                "torch.cuda.synchronize(), or an event's synchronize(), before it is read",
                read,
            )


class OverwrittenTooEarly(Rule):
    """A pinned buffer is written to while a copy from it to the GPU is still under way."""

    name = "buffer-overwritten"
    kind = "error"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each line that writes, once."""
        for copy, write in dict.fromkeys(trace.facts.get("overwritten", ())):
            yield self.finding(
                f"The pinned buffer that {copy} copies with non_blocking=True is written to here, "
                "with no wait in between: on a card, the GPU may get the new values.",
                "an event after the copy, and its synchronize() before the buffer is used again; "
                "or two buffers in turn",
                write,
            )


class StreamRace(Rule):
    """Two streams use a tensor, one of them writes to it, and neither waits for the other."""

    name = "stream-race"
    kind = "error"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each pair of lines, once."""
        for site, what in dict.fromkeys(trace.facts.get("races", ())):
            yield self.finding(
                what,
                "stream.wait_stream(other) before it is used; tensor.record_stream(stream) if it "
                "may be freed meanwhile",
                site,
            )
