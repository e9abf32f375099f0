"""Unary ops, binary ops and reductions of PyTorch's database, on any values."""

from functools import cache
from typing import Any

import torch
from torch.testing._internal.opinfo.core import (
    BinaryUfuncInfo,
    OpInfo,
    ReductionOpInfo,
    UnaryUfuncInfo,
)

from tests.conformance.cases import known_differences
from tests.conformance.ops import by_name, on_cuda
from tests.conformance.random_programs.choices import Choices
from tests.conformance.random_programs.layers import HALVES
from tests.conformance.random_programs.running import Running
from tests.conformance.random_programs.values import Twin, count_versions_alike

# Random, of CUDA alone, or with arguments that no other op of their class takes.
LEFT_OUT = {
    "nn.functional.rrelu", "nn.functional.prelu", "fill", "jiterator_unary", "jiterator_binary",
    "jiterator_binary_return_by_ref", "std.unbiased", "var.unbiased", "masked.norm",
}  # fmt: skip
# The same under autocast for the CPU and for CUDA, whose lists are not the same.
UNDER_AUTOCAST = {
    "abs", "neg", "sigmoid", "tanh", "sin", "nn.functional.relu", "add", "sub", "mul", "maximum",
    "amax", "amin", "all", "any",
}  # fmt: skip


@cache
def ops(kind: type[OpInfo]) -> list[OpInfo]:
    return [op for name, op in by_name().items() if isinstance(op, kind) and name not in LEFT_OUT]


def op_of(running: Running, choices: Choices, kind: type[OpInfo]) -> OpInfo:
    known = ops(kind)
    if running.inside("autocast"):
        known = [op for op in known if op.full_name in UNDER_AUTOCAST]
    return choices.among(known)


def fitting(op: OpInfo, value: Twin) -> bool:
    return on_cuda(op, value.dtype)


def named(op: OpInfo, value: Twin) -> dict[str, Any]:
    return op.sample_kwargs("cpu", value.dtype, value.cpu)[0]


@cache
def rounded_once() -> set[str]:
    """Ops that a card computes in float32 where the CPU rounds in between."""
    return {name for entry in known_differences() if entry.rounding for name in entry.names}


def agreement(op: OpInfo, value: Twin) -> str:
    return "close" if value.dtype in HALVES and op.full_name in rounded_once() else "exact"


def unary(running: Running, choices: Choices) -> None:
    op = op_of(running, choices, UnaryUfuncInfo)
    value = running.pick(choices, lambda v: fitting(op, v))
    if fitting(op, value):
        how = agreement(op, value)
        running.apply(op.full_name, op.op, value, compare=how, **named(op, value))


def unary_in_place(running: Running, choices: Choices) -> None:
    op = op_of(running, choices, UnaryUfuncInfo)
    value = running.pick(choices, lambda v: fitting(op, v))
    if op.inplace_variant and fitting(op, value):
        how, name = agreement(op, value), f"{op.full_name}_"
        running.apply(name, op.inplace_variant, value, compare=how, **named(op, value))


def other_operand(running: Running, choices: Choices, value: Twin) -> Twin | float:
    """A value that broadcasts to the shape of another one, on its device; or a number."""
    how = choices.among(["any", "any", "same", "row", "column", "number"])
    if how == "number":
        return choices.among([2, 0.5, -1, 3, True])
    same = [v for v in running.values if v.strided and v.device == value.device]
    alike = [v for v in same if broadcasts(v, value)]
    if how == "any" and alike:
        return choices.among(alike)
    shape = list(value.shape)
    if shape and how in ("row", "column"):
        shape[0 if how == "row" else -1] = 1
    return running.new(choices, shape, value.dtype, value.device)


def broadcasts(one: Twin, other: Twin) -> bool:
    pairs = zip(reversed(one.shape), reversed(other.shape), strict=False)
    return one.dim <= other.dim and all(a in (b, 1) for a, b in pairs)


def binary(running: Running, choices: Choices) -> None:
    op = op_of(running, choices, BinaryUfuncInfo)
    value = running.pick(choices, lambda v: fitting(op, v))
    other = other_operand(running, choices, value)
    if fitting(op, value) and (not isinstance(other, Twin) or fitting(op, other)):
        running.apply(op.full_name, op.op, value, other)


def binary_in_place(running: Running, choices: Choices) -> None:
    op = op_of(running, choices, BinaryUfuncInfo)
    value = running.pick(choices, lambda v: fitting(op, v))
    other = other_operand(running, choices, value)
    both = fitting(op, value) and (not isinstance(other, Twin) or fitting(op, other))
    if op.inplace_variant and both:
        running.apply(f"{op.full_name}_", op.inplace_variant, value, other)


def into_out(running: Running, choices: Choices) -> None:
    """A binary op into a value of the program, whatever its shape, dtype and strides."""
    op = op_of(running, choices, BinaryUfuncInfo)
    value = running.pick(choices, lambda v: fitting(op, v) and not v.cpu.requires_grad)
    other = other_operand(running, choices, value)
    same = [v for v in running.values if v.strided and v.device == value.device]
    if not (op.supports_out and same and fitting(op, value)):
        return
    if isinstance(other, Twin) and fitting(op, other) and not running.inside("autocast"):
        out = choices.among(same)
        if running.apply(op.full_name, op.op, value, other, out=out) is None:
            for side in (out.cpu, out.gpu):  # resized, perhaps, and not written to
                side.data.zero_()


def reduction(running: Running, choices: Choices) -> None:
    op = op_of(running, choices, ReductionOpInfo)
    value = running.pick(choices, lambda v: fitting(op, v))
    if not fitting(op, value):
        return
    how: dict[str, Any] = {}
    if value.dim and not choices.once_in(3):
        how["dim"] = choices.below(2 * value.dim) - value.dim
        if op.supports_multiple_dims and choices.once_in(3):
            how["dim"] = sorted({how["dim"] % value.dim, choices.below(value.dim)})
        how["keepdim"] = choices.once_in(2)
    running.apply(op.full_name, op.op, value, **how)


def foreach(running: Running, choices: Choices) -> None:
    """An op on a list of tensors of one device, in place or not."""
    value = running.pick(choices, lambda v: v.floats)
    alike = [v for v in running.values if v.strided and v.device == value.device and v.floats]
    given = list(dict.fromkeys([value, *alike]))[: 1 + choices.below(4)]
    name = choices.among(["add", "mul", "sqrt", "neg", "exp", "abs", "addcmul", "lerp", "norm"])
    place = "_" if name != "norm" and choices.once_in(2) else ""
    extra: list[Any] = []
    if name in ("add", "mul"):
        extra = [choices.among([2.0, 0.5, given])]
    elif name == "addcmul":
        extra = [given, given, 0.5]
    elif name == "lerp":
        extra = [given, 0.25]
    function = getattr(torch, f"_foreach_{name}{place}")
    running.apply(f"torch._foreach_{name}{place}", function, given, *extra)
    for each in given:
        count_versions_alike(each)  # on the CPU the ops inside count, too
        running.check(each)


KINDS = {
    "unary": (unary, 6), "unary_in_place": (unary_in_place, 3), "binary": (binary, 6),
    "binary_in_place": (binary_in_place, 4), "into_out": (into_out, 3),
    "reduction": (reduction, 4), "foreach": (foreach, 2),
}  # fmt: skip
