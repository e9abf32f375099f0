"""How Triton's interpreter computes in bfloat16 and float8, which numpy does not have.

The interpreter keeps them as integers of their bits, and adds and multiplies those. Here each op
on bfloat16 is computed in float32 and rounded once, as a card does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import torch

from anydevice.virtual.compiled.names import interpreter_names

FLOAT8 = {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}
MANTISSA = 16  # the bits of a float32 that bfloat16 lacks


@cache
def prepare() -> None:
    """Replaces them in the interpreter, for good: only virtual GPUs use it."""
    for owner, name, value in list(_methods()):
        setattr(owner, name, value)


def _methods() -> Iterator[tuple[Any, str, Any]]:
    """The builder's methods that compute."""
    names = interpreter_names()
    builder = names.Builder
    for name in ("binary_op", "unary_op", "ternary_op", "create_fma", "create_rsqrt"):
        yield builder, name, _in_float32(getattr(builder, name))
    yield builder, "create_dot", _dot(builder.create_dot)
    yield builder, "create_ashr", _shifted_right
    yield builder, "create_atomic_rmw", _atomic(builder.create_atomic_rmw)
    yield builder, "create_minnumf", lambda self, x, y: self.binary_op(x, y, np.fmin)
    yield builder, "create_maxnumf", lambda self, x, y: self.binary_op(x, y, np.fmax)
    yield builder, "create_clampf", _clamped
    for name in ("cast_impl", "create_fp_to_fp"):
        yield builder, name, _cast(getattr(builder, name))
    along = (names.Reduce, "sum"), (names.Reduce, "min_max"), (names.Scan, "cumsum")
    for owner, name in (*along, (names.Scan, "cumprod")):
        yield owner, name, _along_an_axis(getattr(owner, name))
    if not hasattr(builder, "get_bf16"):
        yield builder, "get_bf16", _bfloat16_number
    if not hasattr(builder, "create_dot_scaled"):  # before Triton 3.8
        yield builder, "create_dot_scaled", _scaled_dot
        semantic = type(names.semantic)
        yield semantic, "dot_scaled", _with_constants(semantic.dot_scaled)


def widened(bits: Any) -> Any:
    """The float32 numbers of bfloat16 bits."""
    return (bits.astype(np.uint32) << MANTISSA).view(np.float32)


def rounded(numbers: Any) -> Any:
    """The bfloat16 bits of float32 numbers, rounded to the nearest, ties to even."""
    bits = np.ascontiguousarray(numbers, dtype=np.float32).view(np.uint32)
    up = ((bits >> MANTISSA) & 1) + np.uint32(0x7FFF)
    short = ((bits + up) >> MANTISSA).astype(np.uint16)
    return np.where(np.isnan(numbers), np.uint16(0x7FC0), short)


def _is_bfloat16(handle: Any) -> bool:
    return bool(getattr(getattr(handle, "dtype", None), "scalar", None) == _language().bfloat16)


def _language() -> Any:
    import triton.language

    return triton.language


def _wide(handle: Any) -> Any:
    if not _is_bfloat16(handle) or handle.data.dtype != np.uint16:
        return handle
    return interpreter_names().Handle(widened(handle.data), _language().float32)


def _in_float32(compute: Callable[..., Any]) -> Callable[..., Any]:
    def computed(self: Any, *operands: Any) -> Any:
        if not any(_is_bfloat16(operand) for operand in operands):
            return compute(self, *operands)
        result = compute(self, *(_wide(operand) for operand in operands))
        if result.data.dtype == np.float32:
            handle = interpreter_names().Handle
            return handle(rounded(result.data), _language().bfloat16)
        return result

    return computed


def _along_an_axis(compute: Callable[..., Any]) -> Callable[..., Any]:
    """A sum, a maximum: of bfloat16 in float32, rounded once; sums of integers keep their bits."""

    def computed(self: Any, given: Any, *rest: Any, **named: Any) -> Any:
        tl = _language()
        named = {name: SKIPPING_NANS.get(each, each) for name, each in named.items()}
        if compute.__name__ != "min_max" and not given.dtype.is_floating():
            wide = compute(self, _of_kind(given, given.handle.data.astype(np.int64), tl.int64))
            return _each(wide, lambda sums: _narrowed(sums, given), given.dtype)
        if not _is_bfloat16(given.handle):
            return compute(self, given, *rest, **named)
        wide = compute(
            self, _of_kind(given, widened(given.handle.data), tl.float32), *rest, **named
        )
        return _each(wide, rounded, tl.bfloat16)

    return computed


def _narrowed(sums: Any, given: Any) -> Any:
    """What a card's registers keep of them."""
    return (
        (sums & 1).astype(bool) if given.dtype.is_int1() else sums.astype(given.handle.data.dtype)
    )


def _extreme(most: Any) -> Callable[..., Any]:
    return lambda data, axis, keepdims: most.reduce(data, axis=axis, keepdims=keepdims)


def _place(most: Callable[..., Any], instead: float) -> Callable[..., Any]:
    def place(data: Any, axis: Any, keepdims: bool) -> Any:
        known = np.where(np.isnan(data), instead, data) if data.dtype.kind == "f" else data
        return most(known, axis=axis, keepdims=keepdims)

    return place


# A maximum and its place, as a card finds them: a NaN is less than each number, or more.
SKIPPING_NANS: dict[Callable[..., Any], Callable[..., Any]] = {
    np.max: _extreme(np.fmax),
    np.nanmax: _extreme(np.fmax),
    np.argmax: _place(np.argmax, -np.inf),
    np.nanargmax: _place(np.argmax, -np.inf),
    np.min: _extreme(np.fmin),
    np.nanmin: _extreme(np.fmin),
    np.argmin: _place(np.argmin, np.inf),
    np.nanargmin: _place(np.argmin, np.inf),
}


def _each(results: Any, change: Callable[..., Any], kind: Any) -> Any:
    """One result or several, of which places stay integers."""
    if isinstance(results, list | tuple):
        return type(results)(_each(result, change, kind) for result in results)
    if kind == _language().bfloat16 and not results.dtype.is_floating():
        return results
    return _of_kind(results, change(results.handle.data), kind)


def _of_kind(tensor: Any, data: Any, kind: Any) -> Any:
    """A tensor of the same shape with these numbers."""
    tl = _language()
    shaped = tl.block_type(kind, list(tensor.shape)) if tensor.type.is_block() else kind
    return tl.tensor(interpreter_names().Handle(data, kind), shaped)


def _dot(compute: Callable[..., Any]) -> Callable[..., Any]:
    def dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return compute(self, _wide(a), _wide(b), *rest)

    return dot


def _clamped(self: Any, x: Any, low: Any, high: Any, nans: Any) -> Any:
    """A NaN becomes the lower limit, if the kernel does not ask for NaNs."""
    stays = nans == _language().PropagateNan.ALL
    most, least = (np.maximum, np.minimum) if stays else (np.fmax, np.fmin)
    return self.ternary_op(x, low, high, lambda x, low, high: least(most(x, low), high))


def _shifted_right(self: Any, number: Any, by: Any) -> Any:
    """With its sign. Triton's own changes the types of its operands."""
    signed = np.dtype(f"i{number.data.itemsize}")
    return interpreter_names().Handle(
        np.right_shift(number.data.view(signed), by.data.astype(signed)).view(number.data.dtype),
        number.dtype.scalar,
    )


def _atomic(change: Callable[..., Any]) -> Callable[..., Any]:
    """On bfloat16 one element after the other, for which the interpreter has no code."""

    def atomic(self: Any, op: Any, pointers: Any, values: Any, mask: Any, *order: Any) -> Any:
        if not _is_bfloat16(values):
            return change(self, op, pointers, values, mask, *order)
        names = interpreter_names()
        memory, before = names.module._interpreter, np.zeros_like(values.data)
        memory.note_atomic()
        for at in zip(*np.nonzero(np.broadcast_to(mask.data, values.data.shape)), strict=True):
            place, here = pointers.data[at].reshape(1), np.ones(1, bool)
            old = memory.load(place, here, np.zeros(1, np.uint16), np.dtype(np.uint16))
            new = COMBINED[op.name](widened(old), widened(values.data[at].reshape(1)))
            memory.store(place, rounded(new), here)
            before[at] = old[0]
        return names.Handle(before, values.dtype.scalar)

    return atomic


COMBINED: dict[str, Callable[..., Any]] = {
    "FADD": np.add,
    "XCHG": lambda old, new: new,
    "MAX": np.fmax,
    "MIN": np.fmin,
}


def _cast(convert: Callable[..., Any]) -> Callable[..., Any]:
    def cast(self: Any, source: Any, wanted: Any, *rounding: Any) -> Any:
        names, tl = interpreter_names(), _language()
        given, to = source.dtype.scalar, wanted.scalar
        if given.name in FLOAT8 or to.name in FLOAT8:
            return names.Handle(_through_torch(source.data, given, to), to)
        if given == tl.bfloat16 != to:
            return cast(self, _wide(source), wanted, *rounding)
        if to == tl.bfloat16 != given:
            return names.Handle(rounded(source.data.astype(np.float32)), to)
        if given.is_floating() and to.is_floating():
            return names.Handle(source.data.astype(names.dtype_of(to)), to)
        return convert(self, source, wanted, *rounding)

    return cast


def _through_torch(data: Any, given: Any, to: Any) -> Any:
    """To or from float8; numbers that are too large become the largest, as cards convert them."""
    tl = _language()
    if given.name in FLOAT8:
        bits = torch.from_numpy(np.array(data, dtype=np.uint8))
        numbers = bits.view(FLOAT8[given.name]).float().numpy()
    else:
        numbers = widened(data) if given == tl.bfloat16 else data.astype(np.float32)
    if to.name in FLOAT8:
        most = torch.finfo(FLOAT8[to.name]).max
        small = torch.from_numpy(np.clip(numbers, -most, most)).to(FLOAT8[to.name])
        return small.view(torch.uint8).numpy()
    if to == tl.bfloat16:
        return rounded(numbers)
    return numbers.astype(interpreter_names().dtype_of(to))


def _bfloat16_number(self: Any, value: float) -> Any:
    return interpreter_names().Handle(rounded(np.array([value], np.float32)), _language().bfloat16)


# ---- products of numbers with a scale for each block of them ----

FLOAT4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)  # by the bits after the sign
FORMATS = {"E4M3": "float8e4nv", "E5M2": "float8e5"}
BIAS, NOT_A_NUMBER = 127, 255  # of a scale of 8 bits, which is a power of two


def _with_constants(compute: Callable[..., Any]) -> Callable[..., Any]:
    def dot_scaled(self: Any, *operands: Any) -> Any:
        constant = _language().constexpr
        return compute(self, *(constant(o) if isinstance(o, str) else o for o in operands))

    return dot_scaled


def _scaled_dot(
    self: Any,
    left: Any,
    left_scale: Any,
    left_format: Any,
    right: Any,
    right_scale: Any,
    right_format: Any,
    fast: bool,
    left_packed: bool,
    right_packed: bool,
    total: Any,
) -> Any:
    rows = _scaled(left.data, left_scale, left_format, left_packed)
    columns = _scaled(np.swapaxes(right.data, -1, -2), right_scale, right_format, right_packed)
    product = np.matmul(rows, np.swapaxes(columns, -1, -2))
    return interpreter_names().Handle(product + total.data, total.dtype.scalar)


def _scaled(data: Any, scale: Any, form: Any, packed: bool) -> Any:
    """The numbers, with the dimension that is summed last; `packed` if pairs lie along that."""
    kind, tl = str(form).rpartition(".")[2], _language()
    if kind == "E2M1":
        data = np.stack((data & 15, data >> 4), axis=-1 if packed else -2)
        data = data.reshape(*data.shape[:-2], -1) if packed else _joined(data)
        numbers = np.where(data & 8, -FLOAT4[data & 7], FLOAT4[data & 7])
    elif kind == "BF16":
        numbers = widened(data)
    elif kind == "FP16":
        numbers = data.astype(np.float32)
    else:
        numbers = _through_torch(data, getattr(tl, FORMATS[kind]), tl.float32)
    if scale is None:
        return numbers
    return numbers * np.repeat(_factors(scale), numbers.shape[-1] // scale.data.shape[-1], axis=-1)


def _joined(pairs: Any) -> Any:
    """Pairs that lie along the dimension before the last."""
    *batch, rows, two, columns = pairs.shape
    return pairs.reshape(*batch, rows * two, columns)


def _factors(scale: Any) -> Any:
    given, tl = scale.dtype.scalar, _language()
    if given.name in FLOAT8:
        return _through_torch(scale.data, given, tl.float32)
    powers = np.ldexp(np.float32(1), scale.data.astype(np.int32) - BIAS)
    return np.where(scale.data == NOT_A_NUMBER, np.float32(np.nan), powers)
