"""Evaluation with gradients, and networks in the wrong mode."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from anydevice.check.finding import Finding, Rule
from anydevice.check.trace import Call, Trace
from anydevice.text import size_text

LEAST = 16 << 10  # bytes of activations


class EvaluatedWithGradients(Rule):
    """A network in eval mode runs without torch.no_grad(): its activations are kept for nothing."""

    name = "evaluation-with-gradients"
    kind = "memory"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each line that calls a network so."""
        found: dict[tuple[str, int], tuple[Call, int]] = {}
        passes = trace.named("forward", "backward", "gradients")
        for at, call in enumerate(passes[:-1]):
            if call.name != "forward" or call.info["training"] or not call.info["gradients"]:
                continue
            after = next((c for c in passes[at + 1 :] if _ends(c, call)), None)
            if after is None or after.name != "forward" or not call.info["requires"]:
                continue
            size = _kept(trace, call.info["event"], after.info["event"])
            before = found.get(call.site.own, (call, 0))
            found[call.site.own] = before[0], max(before[1], size)
        for call, size in found.values():
            if size < LEAST:
                continue
            yield self.finding(
                f"{call.info['kind']} is in eval mode and runs with gradients: "
                f"{size_text(size)} of activations are kept for a backward pass that does not "
                "come.",
                "with torch.no_grad():",
                call.site,
                bytes=size,
            )


def _ends(call: Call, begun: Call) -> bool:
    same = call.name == "forward" and call.info["network"] == begun.info["network"]
    return same or call.name != "forward"


def _kept(trace: Trace, begin: int, end: int) -> int:
    """The most activations that are there at a time."""
    changes = []
    for block in trace.blocks:
        if begin <= block.start < end and block.category == "activations":
            changes.append((block.start, block.bytes))
            if block.end is not None:
                changes.append((block.end, -block.bytes))
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


class EvaluatedInTrainMode(Rule):
    """An evaluation runs in train mode: dropout drops, and batch norm learns from the data."""

    name = "evaluation-in-train-mode"
    kind = "error"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each line that calls a network so in an evaluation."""
        found = set[tuple[str, int]]()
        steps = [call.at for call in trace.named("optimizer.step")]
        for call, before, after in _neighbours(trace.named("forward")):
            info = call.info
            if info["gradients"] or not info["training"] or not info["depends"]:
                continue
            new = info["trained"] and call.site.own not in found
            if new and _in_a_row(call, before, after, steps):
                found.add(call.site.own)
                yield self.finding(
                    f"{info['kind']} is evaluated in train mode: {info['depends']} behaves as "
                    "in training.",
                    "network.eval() before the evaluation, network.train() after it",
                    call.site,
                    confidence="likely",
                )


def _neighbours(calls: list[Call]) -> Iterator[tuple[Call, Call | None, Call | None]]:
    for at, call in enumerate(calls):
        before = calls[at - 1] if at else None
        yield call, before, calls[at + 1] if at + 1 < len(calls) else None


def _in_a_row(call: Call, before: Call | None, after: Call | None, steps: list[int]) -> bool:
    """Whether the same line ran before or after it, with no optimizer's step in between."""
    for other in (before, after):
        if other is None or other.site.own != call.site.own or other.info["gradients"]:
            continue
        low, high = sorted((call.at, other.at))
        if bisect_right(steps, low) == bisect_right(steps, high) and steps and steps[0] <= low:
            return True
    return False


class TrainedInEvalMode(Rule):
    """Training continues in eval mode after an evaluation: dropout and batch norm are off."""

    name = "training-in-eval-mode"
    kind = "error"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each line that trains a network so, if it was in train mode before."""
        found, was_training = set[tuple[str, int]](), set[int]()
        passes = trace.named("forward", "backward")
        for call, _, after in _neighbours(passes):
            info = call.info
            if call.name != "forward" or not info["gradients"] or not info["trained"]:
                continue
            if after is None or after.name != "backward":
                continue
            if info["training"]:
                was_training.add(info["network"])
            elif info["network"] in was_training and info["depends"] and call.site.own not in found:
                found.add(call.site.own)
                yield self.finding(
                    f"{info['kind']} is trained in eval mode, since an evaluation has left it so: "
                    f"{info['depends']} is off.",
                    "network.train() at the start of each epoch",
                    call.site,
                )
