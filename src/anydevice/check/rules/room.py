"""What would make room on a card that is nearly full."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from anydevice.check.finding import Change, Finding, Rule
from anydevice.check.trace import Seen, Trace
from anydevice.plan.hollow.blocks import ACTIVATIONS, OPTIMIZER, Peak, peak
from anydevice.plan.remedies.changes import blocks_of
from anydevice.text import size_text

FULL = 0.5  # of the smallest card: with less, memory is no concern
WORTH = 0.1  # of the peak
SAVE_NOTHING = ("add", "add_", "sub", "view", "clone")
TRAINS = ("step", "update")


def _full(trace: Trace) -> Peak | None:
    """The peak, if it is a large part of the smallest card and the program trains."""
    if trace.unit not in TRAINS or not trace.steps:
        return None
    most = peak(trace.blocks)
    return most if most.bytes >= FULL * trace.facts.get("smallest", 0) > 0 else None


class KeepsActivations(Rule):
    """Activations take most of the memory: checkpointing would save them, and cost time."""

    name = "no-checkpointing"
    kind = "memory"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """For the network with repeated blocks that was called first."""
        most = _full(trace)
        names: dict[int, str] = trace.facts.get("names", {})
        inputs: dict[int, int] = trace.facts.get("inputs", {})
        for call in trace.named("forward")[:1] if most else ():
            blocks = _blocks(trace.facts["networks"].get(call.info["network"]))
            paths = [names.get(id(block), "") for block in blocks]
            held = {path: _held(most, path) for path in paths if most}
            kept = sum(inputs.get(id(block), 0) for block in blocks)
            saved = sum(held.values()) - max(held.values(), default=0) - kept
            if most and blocks and saved >= WORTH * most.bytes:
                kind = type(blocks[0]).__name__
                yield self.finding(
                    f"{size_text(sum(held.values()))} of {size_text(most.bytes)} are activations "
                    f"of {len(blocks)} {kind}s. With checkpointing, {size_text(saved)} are free, "
                    "and each step computes them twice.",
                    "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
                    call.site,
                    bytes=saved,
                    per="step",
                    change=_twice(frozenset(held)),
                    confidence="likely",
                    hint=True,
                )


def _blocks(network: nn.Module | None) -> list[nn.Module]:
    return blocks_of(network)[1] if network is not None else []


def _held(most: Peak, name: str) -> int:
    """The bytes of a block's activations at the peak."""
    return sum(
        b.bytes for b in most.blocks if b.category == ACTIVATIONS and _within(b.module, name)
    )


def _within(module: str, name: str) -> bool:
    return bool(name) and (module == name or module.startswith(f"{name}."))


def _twice(names: frozenset[str]) -> Change:
    """The blocks' passes forward once more, before the backward pass."""

    def change(step: list[Seen]) -> Iterator[Seen]:
        again = [one for name in sorted(names) for one in _again(step, name)]
        begun = False
        for one in step:
            if one.phase == "backward" and not begun:
                begun = True
                yield from (replace(more, phase="backward") for more in again)
            yield one

    return change


def _again(step: list[Seen], name: str) -> list[Seen]:
    """What checkpointing runs again of a block: all up to its last product, which saves nothing."""
    whole = [
        one for one in step
        if one.phase == "forward" and one.launched and _within(one.module, name)
    ]  # fmt: skip
    while whole and whole[-1].op in SAVE_NOTHING:
        whole.pop()
    last = whole[-1].launched if whole else None
    return whole[:-1] if last and last.products else whole


class WideStates(Rule):
    """The optimizer's states take much of the memory, in float32."""

    name = "float32-states"
    kind = "memory"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Once for the program."""
        most = _full(trace)
        states = sum(b.bytes for b in most.blocks if b.category == OPTIMIZER) if most else 0
        steps = trace.named("optimizer.step")
        wide = [call for call in steps if call.info["dtype"] == "float32"]
        if most and wide and states / 2 >= WORTH * most.bytes:
            yield self.finding(
                f"{size_text(states)} of {size_text(most.bytes)} are {wide[0].info['kind']}'s "
                "states in float32: half of that in bfloat16, a quarter in 8 bits.",
                "network.to(torch.bfloat16) before the optimizer is made; or an optimizer with "
                "8-bit states, of torchao or bitsandbytes",
                wide[0].site,
                bytes=states // 2,
                confidence="likely",
                hint=True,
            )
