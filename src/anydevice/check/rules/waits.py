"""The host waits for the GPU."""

from __future__ import annotations

from collections.abc import Iterator

from anydevice.check.finding import Finding, Recurring, Rule, at, recurring, without
from anydevice.check.rules.kernels import STATES
from anydevice.check.trace import Seen, Site, Trace
from anydevice.plan.time.work import Transfer, Wait

BY_OP = {
    "_local_scalar_dense": "item() or a branch reads a value",
    "nonzero": "nonzero has a size that only the GPU knows",
    "index": "a mask as an index has a size that only the GPU knows",
    "index_put_": "a mask as an index has a size that only the GPU knows",
    "masked_select": "masked_select has a size that only the GPU knows",
    "_unique2": "unique has a size that only the GPU knows",
    "repeat_interleave": "repeat_interleave without output_size asks the GPU for its size",
    "_to_copy": "a copy to the host",
    "copy_": "a copy to the host",
}
RARELY = "do it every few steps, or leave it to the GPU"
OF_TORCH = {  # functions of PyTorch that read a value, and what keeps them from it
    "/torch/distributions/": "validate_args=False for the distribution",
    "/torch/nn/modules/transformer.py": "is_causal=True or False, so that the mask is not read",
}
FIXES = {
    "_local_scalar_dense": "total += loss.detach(), and read it every few steps",
    "index": "torch.where(mask, x, 0), which keeps the size",
    "nonzero": "torch.where(mask, x, 0), which keeps the size",
    "masked_select": "torch.where(mask, x, 0), which keeps the size",
    "repeat_interleave": "repeat_interleave(…, output_size=n)",
    "_to_copy": "keep it on the GPU, and copy it every few steps",
    "copy_": "keep it on the GPU, and copy it every few steps",
}


class Waits(Rule):
    """The host waits for the GPU in each step: .item(), .cpu(), nonzero, a mask as an index."""

    name = "synchronisation"
    kind = "slow"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each line that waits."""
        saved = {call.site.own for call in trace.named("save")}
        scaled = {_place(call.site) for call in trace.named("scaler.step")}
        for line in recurring(trace, _waits):
            if line.site.own in saved or _is_wanted(line.seen[0], trace):
                continue
            reasons = _of_scaler(line, trace) if _place(line.site) in scaled else _reasons(line)
            if reasons is not None:
                why, fix = reasons
                change = without(at(line, _waits))
                yield self.of_line(line, f"The host waits for the GPU{why}.", fix, change)


def _reasons(line: Recurring) -> tuple[str, str]:
    """Why it waits, and what to do about it."""
    op = line.seen[0].op
    size = sum(e.bytes for e in (s.entry for s in line.seen) if isinstance(e, Transfer))
    why = BY_OP.get(op, f"{op} asks it for a value" if op else "")
    text = f"{': ' if why else ''}{why}{f' ({size:,} bytes)' if size > 64 else ''}"
    return text, _fix(line.seen[0])


def _fix(one: Seen) -> str:
    if one.op == "_local_scalar_dense" and not one.direct:
        known = (fix for part, fix in OF_TORCH.items() if part in one.caller)
        return next(known, RARELY)
    return FIXES.get(one.op, RARELY)


def _of_scaler(line: Recurring, trace: Trace) -> tuple[str, str] | None:
    """The same for a GradScaler's step; None if there is no fused one, which does not wait."""
    steps = trace.named("optimizer.step")
    kinds = (c.info["kind"] for c in steps if _place(c.site) == _place(line.site))
    if (kind := next(kinds, "")) not in STATES:
        return None
    why = ": GradScaler reads whether a gradient is infinite"
    return why, f"{kind}(…, fused=True), which looks at that on the GPU"


def _place(site: Site) -> tuple[object, object]:
    return site.own, site.library


def _is_wanted(one: Seen, trace: Trace) -> bool:
    """Whether the program waits for a stream, or for the GPU before it looks at a clock."""
    entry = one.entry
    if one.op or not isinstance(entry, Wait):
        return False
    near = [c.site.own for c in trace.named("clock") if c.site.file == one.site.file]
    return "Device" not in entry.what or any(abs(n - one.site.line) <= 3 for _, n in near)


def _waits(one: Seen) -> bool:
    return one.waits and one.op != "empty_cache"
