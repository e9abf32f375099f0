"""Memory that grows, and memory that is given back too often."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from anydevice.check.finding import OFTEN, Finding, Rule
from anydevice.check.source import keeping
from anydevice.check.trace import Place, Site, Trace
from anydevice.plan.hollow.blocks import ACTIVATIONS, BACKWARD, INPUTS, OTHER
from anydevice.text import size_text

LARGE = 16 << 10  # bytes
LOOKED_AT = 4  # steps after the first
LEAST = 3  # steps that have each left something behind
ADDED = (ACTIVATIONS, INPUTS, BACKWARD, OTHER)


class Growth(Rule):
    """Memory grows from step to step, since tensors of each step are kept."""

    name = "memory-grows"
    kind = "memory"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """The line whose tensors are kept, with the line that keeps them."""
        graphs = trace.facts.get("with_graph", set())
        left = list(_left(trace, graphs))
        if len(left) < LEAST or not all(left):
            return
        lines = set.intersection(*(set(step) for step in left))
        grown = {line: min(step[line] for step in left) for line in lines}
        if not grown:
            return
        total = sum(grown.values())
        largest = max(grown, key=lambda line: (grown[line], line))
        file, _, number = largest.rpartition(":")
        made = Place(file, int(number or 0), "")
        keeper = keeping(file, made.line)
        site = Site((Place(file, keeper[0], ""),)) if keeper else Site((made,))
        what = f"{keeper[1]} keeps" if keeper else "Something keeps"
        yield self.finding(
            f"Memory grows by {size_text(total)} a step: {what} what {made} makes.",
            "keep loss.item() every few steps, or tensor.detach(), not the tensors of each step",
            site,
            bytes=total,
            per="step",
        )


def _left(trace: Trace, graphs: set[int]) -> Iterator[dict[str, int]]:
    """For some steps after the first: bytes that are still there, by line.

    Numbers without a graph are left out: to keep these until the end of an epoch is good practice.
    """
    if trace.unit != "step" and trace.unit != "update":
        return
    end = trace.events[-1] if trace.events else 0
    for before, after in list(pairwise(trace.events))[:-1][:LOOKED_AT]:
        kept: dict[str, int] = {}
        for block in trace.blocks:
            alive = block.end is None or block.end >= end
            counts = block.bytes >= LARGE or block.address in graphs
            if before <= block.start < after and alive and counts and block.category in ADDED:
                kept[block.where] = kept.get(block.where, 0) + block.bytes
        yield kept


class GraphGrows(Rule):
    """A sum over steps keeps the graph of each of them, since the loss is not detached."""

    name = "graph-grows"
    kind = "memory"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each line that adds a loss with its graph to a sum of earlier steps."""
        for site, count in trace.facts.get("grown_graphs", {}).items():
            if count >= LEAST:
                yield self.finding(
                    "The sum keeps the graph of each step's loss: it grows on the host, and what "
                    "the graph holds on the GPU stays.",
                    "total += loss.detach()",
                    site,
                    count=count / max(1, len(trace.steps)),
                    per="step",
                )


class EmptiesCache(Rule):
    """torch.cuda.empty_cache() in the loop: the memory is freed and allocated anew."""

    name = "empties-cache"
    kind = "slow"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each line that does so in most steps."""
        for site, share in trace.called("empty_cache"):
            if share >= OFTEN:

                def is_it(seen, site=site):  # type: ignore[no-untyped-def]
                    return seen.op == "empty_cache" and seen.site.own == site.own

                yield self.finding(
                    "The allocator's memory is given back in the loop. The host waits for the GPU, "
                    "and the next step allocates it anew.",
                    "leave it out: the allocator uses its memory again by itself",
                    site,
                    per="step",
                    count=share,
                    change=lambda step, is_it=is_it: [one for one in step if not is_it(one)],
                )
