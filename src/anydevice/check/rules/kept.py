"""Memory that holds what nothing needs any more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from anydevice.check.finding import Finding, Rule
from anydevice.check.source import targets_at
from anydevice.check.spare import Look, Spare
from anydevice.check.trace import Place, Site, Trace
from anydevice.plan.hollow.blocks import ACTIVATIONS, BACKWARD, OTHER, Block, peak
from anydevice.text import size_text

LARGE = 32 << 20  # bytes
SHARE = 0.05  # of the peak


class OutputsKept(Rule):
    """The outputs of a step are kept until those of the next one are there: both take memory."""

    name = "outputs-kept"
    kind = "memory"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Once for the program, at the line that made most of them."""
        before, saved = _without_outputs(trace)
        if not saved or saved < max(LARGE, SHARE * before):
            return
        kept = max(_outputs(trace), key=lambda block: block.bytes)
        made = _made(trace, kept)
        names = ", ".join(targets_at(*made.own))
        yield self.finding(
            f"What is made here in a step is kept until the next step has made it anew, so that "
            f"the peak is {size_text(saved)} higher.",
            f"del {names} after the backward pass" if names else
            "del the variables that hold it after the backward pass; or take a step in a function",
            made,
            bytes=saved,
            per="step",
        )  # fmt: skip


def _made(trace: Trace, block: Block) -> Site:
    """The line that called the network which made it, or the line that made it itself."""
    passes = [call for call in trace.named("forward") if call.info["event"] <= block.start]
    if block.module and passes:
        return passes[-1].site
    return site_of(block)


def site_of(block: Block) -> Site:
    """The line that took it."""
    file, _, line = block.where.rpartition(":")
    return Site((Place(file, int(line or 0), ""),))


def _begin_of_last(trace: Trace) -> tuple[int, int, int]:
    """The events at which the last but one step ends, the next pass forward begins, and ends."""
    if trace.unit not in ("step", "update") or len(trace.events) < 4:
        return 0, 0, 0
    begin, end = trace.events[-2:]
    passes = (call.info["event"] for call in trace.named("forward"))
    return begin, next((at for at in passes if begin <= at < end), 0), end


def _outputs(trace: Trace) -> list[Block]:
    """What an earlier step's pass made, and the next one has replaced."""
    begin, forward, end = _begin_of_last(trace)
    if not forward:
        return []
    step = trace.events[-3]
    return [
        block for block in trace.blocks
        if step <= block.start < begin and block.end is not None and forward < block.end <= end
        and block.category in (ACTIVATIONS, BACKWARD, OTHER)
    ]  # fmt: skip


def _without_outputs(trace: Trace) -> tuple[int, int]:
    """The last step's peak, and how much lower it is if these end before its pass forward."""
    outputs = set(map(id, _outputs(trace)))
    if not outputs:
        return 0, 0
    begin, forward, end = _begin_of_last(trace)
    there = [b for b in trace.blocks if b.start < end and (b.end is None or b.end > begin)]
    now = peak([replace(block, start=max(begin, block.start)) for block in there])
    freed = [replace(b, end=forward) if id(b) in outputs else b for b in there]
    ended = [replace(block, start=max(begin, block.start)) for block in freed]
    return now.bytes, now.bytes - peak(ended).bytes


class WeightsTwice(Rule):
    """A second copy of a network's weights stays on the GPU, and no step uses it."""

    name = "weights-twice"
    kind = "memory"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each copy that is there in two looks, and that nothing writes to in between or later."""
        looks: Sequence[Look] = trace.facts.get("copies", ())
        found = set[Spare]()
        for before, now in pairwise(looks):
            for copy in sorted(now.copies & before.copies - found, key=lambda c: min(c.addresses)):
                found.add(copy)
                blocks = [
                    b for b in trace.blocks if b.address in copy.addresses and _is_at(b, now.event)
                ]
                size = sum(block.bytes for block in blocks)
                if size and not _is_written(trace, copy, before.at):
                    yield self.finding(
                        f"A second copy of {copy.network}'s weights, {size_text(size)}, stays on "
                        "the GPU, and no step uses it.",
                        "keep it on the CPU: {name: tensor.cpu() for …}, or torch.load(…, "
                        'map_location="cpu")',
                        site_of(blocks[0]),
                        bytes=size,
                        confidence="likely",
                    )


def _is_written(trace: Trace, copy: Spare, begin: int) -> bool:
    later = (one.launched for one in trace.seen[begin:])
    return any(op and not copy.storages.isdisjoint(op.writes) for op in later)


def _is_at(block: Block, event: int) -> bool:
    return block.start <= event and (block.end is None or block.end > event)


class Fragmentation(Rule):
    """The allocator holds much more than the tensors take, since sizes differ between steps."""

    name = "fragmentation"
    kind = "memory"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Once for the program."""
        levels = trace.facts.get("levels", ())
        if len(levels) < 4:
            return
        (_, early), (most, held) = levels[1], levels[-1]
        lost = held - most
        if held - early >= 8 * LARGE and lost >= 8 * LARGE and lost >= held / 4:
            begin = next((c.site for c in trace.named("forward")), Site())
            yield self.finding(
                f"The allocator holds {size_text(held)} for tensors that take {size_text(most)} at "
                "their peak: the sizes differ from step to step, and what was freed does not fit.",
                "PYTORCH_ALLOC_CONF=expandable_segments:True; or pad to a few sizes, the largest "
                "first",
                begin,
                bytes=lost,
            )
