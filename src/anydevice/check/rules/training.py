"""What is trained, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from anydevice.check.finding import Finding, Recurring, Rule
from anydevice.check.trace import Call, Seen, Trace
from anydevice.text import counted, size_text


class NotInOptimizer(Rule):
    """Parameters that no optimizer has: made or replaced after it, or in a plain list."""

    name = "untrained-parameters"
    kind = "error"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Those of each network."""
        for network in trace.facts.get("untrained", ()):
            names = ", ".join(network.names[:3]) + (" …" if len(network.names) > 3 else "")
            if network.why == "later":
                yield self.finding(
                    f"{names} of {network.owner}: made after the optimizer, which does not have "
                    "them. They get gradients and never change.",
                    "make the optimizer after the network is complete",
                    network.site,
                )
            elif network.why == "forward":
                yield self.finding(
                    f"{names} of {network.owner}: made anew in each pass forward, so that no "
                    "optimizer has them, and they never learn.",
                    "make the layer once, in __init__",
                    network.site,
                )
            elif network.why == "list":
                yield self.finding(
                    f"{network.attribute} of {network.owner} is a plain {network.container}: the "
                    "optimizer does not have its parameters, and state_dict() leaves them out.",
                    f"nn.Module{'Dict' if network.container == 'dict' else 'List'}(…)",
                    network.site,
                )
            elif network.why == "attribute":
                yield self.finding(
                    f"{names} of {network.owner} gets gradients, but is a plain tensor: no "
                    "optimizer has it, and state_dict() leaves it out.",
                    f"self.{network.names[0]} = nn.Parameter(…)",
                    network.site,
                )


class OptimizerWithoutGradients(Rule):
    """An optimizer steps, and none of its parameters ever has a gradient."""

    name = "optimizer-without-gradients"
    kind = "error"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each such optimizer, if it has stepped several times."""
        by_optimizer: dict[int, list[Call]] = {}
        for call in trace.named("optimizer.step"):
            by_optimizer.setdefault(call.info["optimizer"], []).append(call)
        for calls in by_optimizer.values():
            backward = any(c.at <= calls[-1].at for c in trace.named("backward"))
            if len(calls) > 1 and backward and not any(c.info["graded"] for c in calls):
                yield self.finding(
                    f"{calls[0].info['kind']} steps, but none of its parameters has a gradient: "
                    "the network that is trained has other ones.",
                    "make the optimizer from the parameters of the network that computes the loss",
                    calls[0].site,
                )


class UnusedGradients(Rule):
    """Gradients are computed for parameters that no optimizer has."""

    name = "unused-gradients"
    kind = "memory"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Those of each network."""
        for network in trace.facts.get("untrained", ()):
            if network.why == "left out" and network.bytes:
                yield self.finding(
                    f"{counted(len(network.names), 'parameter')} of {network.owner} "
                    f"({network.names[0]} …) get gradients, and no optimizer has them: "
                    f"{size_text(network.bytes)}, and the time to compute them.",
                    "parameter.requires_grad_(False) for those that are not trained",
                    network.site,
                    bytes=network.bytes,
                    confidence="likely",
                )


class SchedulerFirst(Rule):
    """A learning rate scheduler steps before the optimizer, so that its first rate is skipped."""

    name = "scheduler-first"
    kind = "error"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """The first such step of each line."""
        seen = set[tuple[str, int]]()
        for call in trace.named("scheduler.step"):
            if call.info["early"] and call.site.own not in seen:
                seen.add(call.site.own)
                yield self.finding(
                    "The scheduler steps before the optimizer's first step: the first learning "
                    "rate is skipped.",
                    "optimizer.step(), then scheduler.step()",
                    call.site,
                )


class NoGradScaler(Rule):
    """Gradients are computed in float16 without a GradScaler: small ones become zero."""

    name = "no-grad-scaler"
    kind = "error"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Once, at the backward pass."""
        backward = trace.named("backward")
        scaled = trace.named("scaler.scale") or any(
            call.info["function"] == "MulBackward0" for call in backward
        )
        if scaled or not backward or not trace.named("optimizer.step"):
            return
        if any(_is_half(one) for one in trace.seen if one.phase == "backward"):
            yield self.finding(
                "Gradients are computed in float16, and the loss is not scaled: small gradients "
                "become zero.",
                'scaler = torch.amp.GradScaler("cuda"); or bfloat16, which needs none',
                backward[0].site,
            )


def _is_half(one: Seen) -> bool:
    op = one.launched
    return op is not None and bool(op.products) and op.unit == "float16"


class ClippedWhileScaled(Rule):
    """Gradients are clipped while a GradScaler has them scaled."""

    name = "clipped-while-scaled"
    kind = "error"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each line that clips so."""
        scaled, found = False, set[tuple[str, int]]()
        for call in trace.calls:
            if call.name == "scaler.scale":
                scaled = bool(call.info["enabled"])
            elif call.name in ("scaler.unscale_", "scaler.step"):
                scaled = False
            elif call.name == "clip" and scaled and call.site.own not in found:
                found.add(call.site.own)
                yield self.finding(
                    "Gradients are clipped while they are scaled by the GradScaler, so that nearly "
                    "all are cut.",
                    "scaler.unscale_(optimizer) before it",
                    call.site,
                )


class FilledWithZeros(Rule):
    """zero_grad(set_to_none=False) writes zeros, to which the backward pass then adds."""

    name = "zero-grad-fills"
    kind = "slow"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each line that does."""
        usual = trace.usual
        calls = {c.site.own: c for c in trace.named("zero_grad") if not c.info["to_none"]}
        if usual is None:
            return
        for own, call in calls.items():
            zeros = [
                one for one in trace.work(usual)
                if one.site.own == own and one.op in ("zero_", "_foreach_zero_") and one.launched
            ]  # fmt: skip
            if not zeros:
                continue
            filled = {s for one in zeros if one.launched for s in one.launched.writes}

            def is_extra(one: Seen, own: object = own, filled: set[int] = filled) -> bool:
                if one.site.own == own and one.op in ("zero_", "_foreach_zero_"):
                    return True
                op = one.launched
                adds = op is not None and one.phase == "backward" and one.op == "add_"
                return adds and not filled.isdisjoint(op.writes if op else ())

            line = Recurring(call.site, zeros, len(zeros), "step", 1.0, usual)
            yield self.of_line(
                line,
                "The gradients are filled with zeros, and the backward pass adds to them.",
                "zero_grad(), which sets them to None",
                lambda step, is_extra=is_extra: [o for o in step if not is_extra(o)],  # type: ignore[misc]
            )


class GraphKept(Rule):
    """retain_graph=True where nothing goes back through the graph again."""

    name = "graph-retained"
    kind = "memory"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each line whose graphs were all kept for nothing."""
        relevant = trace.named("backward", "forward", "gradients")
        for_nothing: dict[tuple[str, int], list[bool]] = {}
        sites = {}
        for call, after in pairwise(relevant):
            if call.name == "backward" and call.info["retain"]:
                for_nothing.setdefault(call.site.own, []).append(after.name == "forward")
                sites[call.site.own] = call.site
        for own, each in for_nothing.items():
            if len(each) > 1 and all(each):
                yield self.finding(
                    "The graph is kept after the backward pass, and nothing goes back through it "
                    "again: its activations stay until the variable is assigned anew.",
                    "backward() without retain_graph=True",
                    sites[own],
                )
