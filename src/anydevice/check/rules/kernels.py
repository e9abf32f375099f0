"""Many small kernels where there could be one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from math import prod

from anydevice.check.finding import Finding, Recurring, Rule
from anydevice.check.trace import Seen, Trace
from anydevice.plan.time.ops import CHUNK, CHUNKS
from anydevice.plan.time.work import Op, Product

STATES = {"Adam": 7, "AdamW": 7, "SGD": 5, "Adagrad": 5}  # times that a fused step moves the bytes
LONG = 5e-4  # seconds that are worth another optimizer where it is quick already
NEAR = 16  # kernels between an attention's two products: a scale, a mask, a softmax, dropout, casts
TENSORS = 36  # of a fused optimizer in one launch


class UnfusedOptimizer(Rule):
    """The optimizer launches kernels for each parameter."""

    name = "optimizer-not-fused"
    kind = "slow"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each line that steps one which could be fused."""
        usual = trace.usual
        if usual is None:
            return
        steps = {c.site.own: c for c in trace.named("optimizer.step") if c.at in usual}
        for own, call in steps.items():
            kind, tensors, size = (call.info[n] for n in ("kind", "parameters", "bytes"))
            if kind not in STATES or call.info["defaults"].get("fused") or not size:
                continue
            seen = [o for o in trace.work(usual) if o.phase == "optimizer" and o.site.own == own]
            launched = [one.launched for one in seen if one.launched]
            each = not any(op.name.startswith("_foreach") for op in launched)
            if not launched or (each and len(launched) <= TENSORS // 6):
                continue
            kernels = max(1, -(-tensors // TENSORS), -(-size // 4 // CHUNK // CHUNKS))
            fused = replace(launched[0], name=f"_fused_{kind.lower()}_", bytes=STATES[kind] * size,
                            kernels=kernels, tensors=tensors)  # fmt: skip
            line = Recurring(call.site, seen, 1, "step", 1.0, usual)
            finding = self.of_line(
                line,
                f"{kind} launches {len(launched)} kernels for {tensors} tensors.",
                f"{kind}(…, fused=True)",
                _as_one(own, fused),
            )
            finding.least, finding.least_seconds = (0.02, 0.0) if each else (0.1, LONG)
            yield finding


def _as_one(own: tuple[str, int], fused: Op) -> Callable[[list[Seen]], list[Seen]]:
    def change(step: list[Seen]) -> list[Seen]:
        of_it = [o for o in step if o.phase == "optimizer" and o.site.own == own]
        if not of_it:
            return step
        kept = [replace(o, entry=fused) if o is of_it[0] else o for o in step]
        dropped = set(map(id, of_it[1:]))
        return [one for one in kept if id(one) not in dropped]

    return change


class UnfusedAttention(Rule):
    """Attention computed with its scores in memory, where one kernel does it all."""

    name = "attention-not-fused"
    kind = "slow"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Once for the program, for all layers."""
        usual = trace.usual
        found = list(_attentions(trace.work(usual))) if usual else []
        if not found:
            return
        score = found[0].score
        yield self.finding(
            f"Attention keeps its scores in memory, {' × '.join(map(str, score))}, in "
            f"{len(found)} layers.",
            "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=…)",
            found[0].first.site,
            count=len(found),
            per="step",
            change=_fused_attention,
            least=0.02,
        )


class _Attention:
    """Two batched products with a softmax of the same scores in between, from `at` to `end`."""

    def __init__(self, first: Seen, at: int, end: int, score: tuple[int, ...], width: int) -> None:
        self.first, self.at, self.end, self.score, self.width = first, at, end, score, width
        self.unit = first.launched.unit if first.launched else ""


def _attentions(step: list[Seen]) -> Iterator[_Attention]:
    at = 0
    while at < len(step):
        found = _attention_at(step, at)
        if found:
            yield found
        at = found.end + 1 if found else at + 1


def _attention_at(step: list[Seen], at: int) -> _Attention | None:
    """A product q·kᵀ at this place, a softmax, and the product with v, all within few entries."""
    one = step[at]
    op = one.launched
    if one.phase != "forward" or op is None or one.op not in ("bmm", "baddbmm"):
        return None
    product = op.products[0]
    rows, columns, width = product.m, product.n, product.k
    softmaxed = False
    for end, after in islice(_launched(step, at + 1), NEAR):
        if after.op == "_softmax" and after.shapes and after.shapes[0][-2:] == (rows, columns):
            softmaxed = True
        elif after.op == "bmm" and after.launched:
            p = after.launched.products[0]
            if softmaxed and (p.batch, p.m, p.k) == (product.batch, rows, columns):
                return _Attention(one, at, end, (product.batch, rows, columns), width)
            return None
    return None


def _launched(step: list[Seen], begin: int) -> Iterator[tuple[int, Seen]]:
    """What has kernels, from a place on, each with its own place."""
    return ((at, step[at]) for at in range(begin, len(step)) if step[at].launched)


def _fused_attention(step: list[Seen]) -> list[Seen]:
    """One kernel forward and a few back in place of what handles the scores."""
    found = list(_attentions(step))
    if not found:
        return step
    scores = {one.score for one in found}
    result: list[Seen] = []
    begins = {one.at: one for one in found}
    inside = [(one.at, one.end) for one in found]
    for at, one in enumerate(step):
        if at in begins:
            result.append(_kernel(one, begins[at], 1.0, backward=False))
        if any(begin <= at <= end for begin, end in inside):
            continue
        if one.phase == "backward" and _is_of_scores(one, scores):
            if one.op == "_softmax_backward_data":
                result.append(_kernel(one, found[0], 5.0, backward=True))
            continue
        result.append(one)
    return result


def _kernel(one: Seen, attention: _Attention, times: float, *, backward: bool) -> Seen:
    op = one.launched
    assert op
    batch, rows, columns = attention.score
    product = Product(batch, rows, columns, attention.width, "attention", times)
    element = 2 if attention.unit in ("float16", "bfloat16") else 4
    moved = 4.0 * batch * rows * attention.width * element * (2 if backward else 1)
    name = "_scaled_dot_product_flash_attention" + "_backward" * backward
    fused = replace(op, name=name, products=(product,), bytes=moved, kernels=2 if backward else 1,
                    backward=backward, unit=attention.unit, aligned=True, layout=0.0)  # fmt: skip
    return replace(one, entry=fused)


def _is_of_scores(one: Seen, scores: set[tuple[int, ...]]) -> bool:
    op = one.launched
    if op is None:
        return False
    if op.products:
        p = op.products[0]
        return any(
            (p.batch == b and sorted((p.m, p.n, p.k))[1:] == sorted((r, c)))
            or (p.batch == b and {p.m, p.n, p.k} >= {r, c} and p.k in (r, c))
            for b, r, c in scores
        )
    return any(
        prod(shape) == b * r * c and {r, c} <= set(shape)
        for shape in one.shapes
        for b, r, c in scores
    )
