"""Arithmetic and layouts that a card's tensor cores could do faster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from anydevice.check.finding import Finding, Rule, replacing
from anydevice.check.trace import Seen, Trace
from anydevice.plan.time.work import Op

HALF = ("float16", "bfloat16")
LONG = 1e-3  # seconds of a step
MOST = 0.5  # of the convolutions
WORTH = 0.1  # of a step: below, another dtype is not worth its risk


class Float32Products(Rule):
    """Products in float32, where the card has TF32."""

    name = "float32-products"
    kind = "slow"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Once for the program."""
        if count := sum(map(_in_float32, _usual(trace))):
            yield self.finding(
                "Matrix products are computed in full float32.",
                'torch.set_float32_matmul_precision("high"), if TF32 is precise enough',
                count=count,
                per="step",
                change=replacing(_in_float32, lambda one: one.changed(unit="tf32")),
                confidence="likely",
                least=WORTH,
                least_seconds=LONG,
            )


class NoAutocast(Rule):
    """A step in float32, where the card has tensor cores for half precision."""

    name = "no-autocast"
    kind = "slow"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Once for the program."""
        work = _usual(trace)
        halves = any(op.unit in HALF and op.products for op in map(_op, work) if op)
        if trace.unit in ("step", "update") and not halves and any(map(_in_full, work)):
            yield self.finding(
                "The network runs in float32 throughout.",
                'with torch.autocast("cuda", dtype=torch.bfloat16): (float16 and a GradScaler '
                "before Ampere)",
                per="step",
                change=_autocast,
                confidence="likely",
                least=2 * WORTH,
                least_seconds=LONG,
            )


def _usual(trace: Trace) -> list[Seen]:
    return trace.work(trace.usual) if trace.usual else []


def _op(one: Seen) -> Op | None:
    return one.launched


def _in_float32(one: Seen) -> bool:
    op = one.launched
    return op is not None and bool(op.products) and op.unit == "float32"


def _in_full(one: Seen) -> bool:
    op = one.launched
    return op is not None and bool(op.products) and op.unit in ("float32", "tf32")


def _autocast(step: list[Seen]) -> Iterator[Seen]:
    """Products in half precision, with casts of their weights; what is between them in half too."""
    for one in step:
        op = one.launched
        if op is None or one.phase == "optimizer":
            yield one
        elif _in_full(one):
            weight = max((prod(s) for s in one.shapes[1:]), default=0) * 4
            cast = replace(op, name="_to_copy", unit="", products=(), bytes=1.5 * weight, kernels=1,
                           layout=0.0)  # fmt: skip
            yield replace(one, entry=cast)
            yield one.changed(unit="float16", bytes=op.bytes / 2, layout=op.layout / 2)
        elif "loss" in op.name or "softmax" in op.name or "norm" in op.name:
            yield one
        else:
            yield replace(one, entry=replace(op, bytes=op.bytes * 0.55))


class ChannelsFirst(Rule):
    """Convolutions in half precision on tensors whose channels are not last."""

    name = "channels-first"
    kind = "slow"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Once for the program, unless most of its layers have channels last already."""
        work = _usual(trace)
        forward = [o for o in work if o.phase == "forward" and o.op == "convolution"]
        if sum(map(_converts, forward)) < MOST * len(forward):
            return
        if count := sum(map(_converts, work)):
            yield self.finding(
                "cuDNN turns the images of half precision convolutions around, to channels last, "
                "and back.",
                "network.to(memory_format=torch.channels_last), and the images too",
                count=count,
                per="step",
                change=replacing(_converts, lambda one: one.changed(layout=0.0)),
                least=0.02,
            )


def _converts(one: Seen) -> bool:
    op = one.launched
    return op is not None and op.layout > 0 and op.unit in HALF


class MissesTensorCores(Rule):
    """Products whose sizes are no multiples of 16 bytes, which tensor cores cannot load."""

    name = "unaligned-sizes"
    kind = "slow"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each line and module with such products."""
        groups: dict[tuple[str, int, str], list[Seen]] = {}
        for one in filter(_is_unaligned, _usual(trace)):
            if one.phase != "backward":
                groups.setdefault((*one.site.own, one.module), []).append(one)
        for (_, _, module), seen in groups.items():
            op = seen[0].launched
            assert op
            product = op.products[0]
            sizes = set(map(_sizes, seen))

            def same(one: Seen, sizes: set[frozenset[int]] = sizes) -> bool:
                return _is_unaligned(one) and _sizes(one) in sizes

            yield self.finding(
                f"{module or 'A product'} of {product.m} × {product.k} × {product.n} has sizes "
                "that tensor cores cannot load 16 bytes at a time.",
                "pad the sizes to multiples of 8",
                seen[0].site,
                count=len(seen),
                per="step",
                change=replacing(same, lambda one: one.changed(aligned=True)),
                least=0.02,
            )


def _sizes(one: Seen) -> frozenset[int]:
    products = one.launched.products if one.launched else ()
    return frozenset(size for p in products for size in (p.m, p.n, p.k))


def _is_unaligned(one: Seen) -> bool:
    op = one.launched
    return op is not None and not op.aligned and op.unit in (*HALF, "tf32")
