"""Inline PTX of a kernel (tl.inline_asm_elementwise), computed by numpy.

A register is an array with an element for each call of the text, as 64 bits whose meaning the
instruction's type says, as in PTX itself.
"""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from anydevice.virtual.compiled import numbers
from anydevice.virtual.compiled.names import interpreter_names

Register = Any  # an array of uint64
WIDTHS = {"b": "u", "u": "u", "s": "i", "f": "f"}
TF32_BITS = 13  # of a float32 that a TF32 number lacks


class Asm:
    """What the interpreter's builder gives back: the results by number."""

    def __init__(self, results: list[Any]) -> None:
        self.get_result = results.__getitem__


def elementwise(
    self: Any, text: str, constraints: str, values: Any, kinds: Any, pure: bool, pack: int
) -> Asm:
    """Stands for the builder's create_inline_asm."""
    shape = values[0].data.shape if values else (1,)
    count = max(1, int(np.prod(shape))) // pack
    outputs = [_registers_for(_bits(kind.scalar), pack) for kind in kinds]
    names = (f"${number}" for number in range(10_000))
    out = [[next(names) for _ in range(size)] for size in outputs]
    program = _Program({"pt": np.ones(count, np.uint64)}, count)
    for handle in values:
        for packed in _packed(handle, pack):
            program.registers[next(names)] = packed
    for guard, op, operands in _instructions(text):
        program.run(guard, op, operands)
    handle = interpreter_names().Handle
    return Asm(
        [
            handle(_unpacked(program, own, kind.scalar, pack).reshape(shape), kind.scalar)
            for own, kind in zip(out, kinds, strict=True)
        ]
    )


@cache
def prepare() -> None:
    """Gives it to the interpreter, for good: only virtual GPUs use it."""
    interpreter_names().Builder.create_inline_asm = elementwise


# ---- from tensors to registers and back ----


def _bits(kind: Any) -> int:
    return max(8, 64 if kind.is_ptr() else int(kind.primitive_bitwidth))


def _registers_for(bits: int, pack: int) -> int:
    """Short elements share registers of 32 bits."""
    return pack if bits >= 32 else max(1, bits * pack // 32)


def _packed(handle: Any, pack: int) -> Iterator[Register]:
    data = np.ascontiguousarray(handle.data).reshape(-1, pack)
    bits = data.dtype.itemsize * 8
    plain = data.view(f"u{bits // 8}").astype(np.uint64)
    each = max(1, pack // _registers_for(bits, pack))
    for first in range(0, pack, each):
        parts = [plain[:, first + at] << np.uint64(at * bits) for at in range(each)]
        yield np.bitwise_or.reduce(parts)


def _unpacked(program: _Program, names: list[str], kind: Any, pack: int) -> Any:
    bits = _bits(kind)
    each = max(1, pack // len(names))
    columns = [program.value(name) >> np.uint64(at * bits) for name in names for at in range(each)]
    plain = np.stack(columns, axis=1).astype(f"u{bits // 8}")
    wanted = interpreter_names().dtype_of(kind)
    return plain.astype(bool) if wanted == np.bool_ else plain.view(wanted)


# ---- the text ----


@cache
def _instructions(text: str) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """A guard such as `!p`, the instruction, and its operands."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    found = []
    for line in re.sub(r"\s+", " ", text).split(";"):
        line = re.sub(r"^[ {}]+", "", line).strip()
        line = line.rstrip("} ") if line.count("{") < line.count("}") else line
        parts = re.match(r"(?:@(!?[\w%]+) +)?([\w.:]+) *(.*)", line)
        if parts and not line.startswith("."):
            operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", parts[3])
            found.append((parts[1] or "", parts[2], tuple(operands)))
    return tuple(found)


class _Program:
    """The registers while a text runs."""

    def __init__(self, registers: dict[str, Register], count: int) -> None:
        self.registers, self.count = registers, count

    def run(self, guard: str, op: str, operands: tuple[str, ...]) -> None:
        """Computes an instruction where its guard holds."""
        name, *ways = op.split(".")
        if name in WITHOUT_EFFECT:
            return
        where = np.ones(self.count, bool)
        if guard:
            where = (self.value(guard.lstrip("!")) != 0) ^ guard.startswith("!")
        if name in ("ld", "st"):
            self._memory(name, ways[-1], operands, where)
            return
        if name not in COMPUTED:
            raise NotImplementedError(
                f"the inline PTX instruction {op} is not computed on virtual GPUs"
            )
        target, *given = operands
        result = COMPUTED[name](ways, *(self.value(each) for each in given))
        self._set(target, result, where, ways[-1] if ways else "b32")

    def value(self, operand: str) -> Register:
        """A register's bits, or those of a number."""
        if operand.startswith("{"):
            parts = [self.value(each) for each in _listed(operand)]
            bits = {2: 16, 4: 8}[len(parts)]
            low = np.uint64((1 << bits) - 1)
            return np.bitwise_or.reduce(
                [(each & low) << np.uint64(bits * at) for at, each in enumerate(parts)]
            )
        if operand.startswith("%"):
            return np.full(self.count, _special(operand), np.uint64)
        if (known := self.registers.get(operand)) is not None:
            return known
        return _number(operand, self.count)

    def _set(self, target: str, result: Any, where: Any, kind: str) -> None:
        if target.startswith("{"):
            names = _listed(target)
            bits = _size(kind) // len(names)
            low = np.uint64((1 << bits) - 1)
            parts = [(result >> np.uint64(at * bits)) & low for at in range(len(names))]
            for name, part in zip(names, parts, strict=True):
                self._keep(name, part, where)
        elif "|" in target:
            first, second = target.split("|")
            self._keep(first, result & np.uint64(1), where)
            other = result >> np.uint64(1) if kind.endswith("x2") else result ^ np.uint64(1)
            self._keep(second, other, where)
        else:
            self._keep(target, result, where)

    def _keep(self, name: str, result: Register, where: Any) -> None:
        before = self.registers.get(name)
        if before is None:
            before = np.zeros(self.count, np.uint64)
        self.registers[name] = np.where(where, result, before)

    def _memory(self, name: str, kind: str, operands: tuple[str, ...], where: Any) -> None:
        memory = interpreter_names().module._interpreter
        place = next(each for each in operands if each.startswith("["))
        base, _, offset = place.strip("[] ").partition("+")
        at = self.value(base.strip()) + np.uint64(int(offset or 0))
        plain = np.dtype(f"u{_size(kind) // 8}")
        if name == "ld":
            loaded = memory.load(at, where, np.zeros(self.count, plain), plain)
            self._keep(operands[0], loaded.astype(np.uint64), where)
        else:
            memory.store(at, self.value(operands[1]).astype(plain), where)


def _listed(operand: str) -> list[str]:
    return [each.strip() for each in operand.strip("{}").split(",")]


def _special(name: str) -> int:
    if name.startswith("%globaltimer"):
        return time.perf_counter_ns()
    raise NotImplementedError(f"the PTX register {name} is not known on virtual GPUs")


def _number(text: str, count: int) -> Register:
    if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
        return np.full(count, int(text[2:], 16), np.uint64)
    if re.fullmatch(r"-?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d+)?", text):
        return np.full(count, np.float32(text).view(np.uint32), np.uint64)
    try:
        return np.full(count, int(text.rstrip("uU"), 0) & (2**64 - 1), np.uint64)
    except ValueError:
        return np.zeros(count, np.uint64)  # a register that nothing was written to


# ---- types ----


def _size(kind: str) -> int:
    if kind.endswith("x2"):
        return 2 * _size(kind[:-2])
    found = re.search(r"\d+", kind)
    return int(found[0]) if found else 32


def _read(bits: Register, kind: str) -> Any:
    """The numbers that bits are."""
    if kind == "bf16":
        return numbers.widened(bits.astype(np.uint16))
    if kind == "tf32":
        kind = "f32"
    size = _size(kind) // 8
    return bits.astype(f"u{size}").view(f"{WIDTHS[kind[0]]}{size}")


def _written(values: Any, kind: str) -> Register:
    """The bits of numbers."""
    if kind == "bf16":
        return numbers.rounded(values).astype(np.uint64)
    size = _size(kind) // 8
    wanted = np.dtype(f"{WIDTHS[kind[0]]}{size}")
    return np.ascontiguousarray(values, dtype=wanted).view(f"u{size}").astype(np.uint64)


def _typed(compute: Callable[..., Any]) -> Callable[..., Register]:
    """An instruction on numbers of its last type, in pairs where that ends with x2."""

    def run(ways: list[str], *operands: Register) -> Register:
        kind = ways[-1]
        if kind.endswith("x2"):
            half = [*ways[:-1], kind[:-2]]
            low = run(half, *(each & np.uint64(0xFFFF) for each in operands))
            high = run(half, *(each >> np.uint64(16) for each in operands))
            return low | (high << np.uint64(16))
        return _written(compute(ways, *(_read(each, kind) for each in operands)), kind)

    return run


def _plain(compute: Callable[..., Any]) -> Callable[..., Register]:
    return _typed(lambda ways, *operands: compute(*operands))


# ---- instructions ----


def _multiplied(ways: list[str], a: Register, b: Register) -> Register:
    kind = ways[-1]
    if "wide" in ways:
        double = f"{kind[0]}{2 * _size(kind)}"
        sizes = np.dtype(f"{WIDTHS[kind[0]]}{_size(kind) // 4}")
        return _written(_read(a, kind).astype(sizes) * _read(b, kind).astype(sizes), double)
    if "hi" in ways:
        product = _read(a, kind).astype(object) * _read(b, kind).astype(object)
        high = (product >> _size(kind)) & (2 ** _size(kind) - 1)
        return high.astype(np.uint64)
    return _plain(operator.mul)(ways, a, b)


def _multiplied_and_added(ways: list[str], a: Register, b: Register, c: Register) -> Register:
    product = _multiplied(ways, a, b)
    kind = ways[-1]
    wide = f"{kind[0]}{2 * _size(kind)}" if "wide" in ways else kind
    return _plain(operator.add)([*ways[:-1], wide], product, c)


def _chosen(least: bool) -> Callable[..., Any]:
    def chosen(ways: list[str], a: Any, b: Any) -> Any:
        floats = a.dtype.kind == "f"
        keep = "NaN" in ways or not floats
        pick = (np.minimum if keep else np.fmin) if least else (np.maximum if keep else np.fmax)
        if "abs" in ways:
            negative = np.signbit(a) ^ np.signbit(b)
            size = pick(np.abs(a), np.abs(b))
            return np.where(negative, -size, size) if "xorsign" in ways else size
        return np.maximum(pick(a, b), 0) if "relu" in ways else pick(a, b)

    return chosen


def _shifted(left: bool) -> Callable[..., Register]:
    def shifted(ways: list[str], a: Register, by: Register) -> Register:
        kind = ways[-1]
        number, size = _read(a, kind), _size(kind)
        steps = np.minimum(by & np.uint64(0xFFFFFFFF), np.uint64(size - 1)).astype(number.dtype)
        moved = number << steps if left else number >> steps
        gone = (by & np.uint64(0xFFFFFFFF)) >= size
        rest = number >> (size - 1) if kind[0] == "s" and not left else np.zeros_like(number)
        return _written(np.where(gone, rest, moved), kind)

    return shifted


def _funnel(ways: list[str], low: Register, high: Register, by: Register) -> Register:
    """A shift of 64 bits, of which 32 stay."""
    steps = by & np.uint64(31) if "wrap" in ways else np.minimum(by, np.uint64(32))
    both = ((high & np.uint64(0xFFFFFFFF)) << np.uint64(32)) | (low & np.uint64(0xFFFFFFFF))
    moved = (both << steps) >> np.uint64(32) if "l" in ways else both >> steps
    return moved & np.uint64(0xFFFFFFFF)


def _permuted(ways: list[str], a: Register, b: Register, chosen: Register) -> Register:
    """prmt: each byte is one of eight; the fourth bit spreads its sign."""
    both = (a & np.uint64(0xFFFFFFFF)) | ((b & np.uint64(0xFFFFFFFF)) << np.uint64(32))
    result = np.zeros_like(both)
    for at in range(4):
        pick = (chosen >> np.uint64(4 * at)) & np.uint64(15)
        byte = (both >> ((pick & np.uint64(7)) * np.uint64(8))) & np.uint64(255)
        sign = np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
        byte = np.where(pick & np.uint64(8), sign, byte)
        result |= byte << np.uint64(8 * at)
    return result


def _any_logic(ways: list[str], a: Register, b: Register, c: Register, table: Register) -> Register:
    """lop3: the table has a bit for each of the eight cases."""
    result = np.zeros_like(a)
    for case in range(8):
        held = (a if case & 4 else ~a) & (b if case & 2 else ~b) & (c if case & 1 else ~c)
        result |= np.where((table >> np.uint64(case)) & np.uint64(1), held, np.uint64(0))
    return result & np.uint64(0xFFFFFFFF)


def _field(ways: list[str], a: Register, begin: Register, length: Register) -> Register:
    kind = ways[-1]
    size = np.uint64(_size(kind))
    begin, length = begin & np.uint64(255), np.minimum(length & np.uint64(255), size)
    found = (a >> np.minimum(begin, size)) & ((np.uint64(1) << length) - np.uint64(1))
    if kind[0] == "s":
        sign = np.uint64(1) << np.maximum(length, np.uint64(1)) - np.uint64(1)
        found = (found ^ sign) - sign
    return found & np.uint64(2 ** int(size) - 1)


def _compared(ways: list[str], a: Register, b: Register, *with_: Register) -> Register:
    rule, kind = COMPARISONS[ways[0].removesuffix("u") or ways[0]], ways[-1]
    if kind.endswith("x2"):
        low = _compared([*ways[:-1], kind[:-2]], *(each & np.uint64(0xFFFF) for each in (a, b)))
        high = _compared([*ways[:-1], kind[:-2]], *(each >> np.uint64(16) for each in (a, b)))
        return low | (high << np.uint64(1))
    return rule(_read(a, kind), _read(b, kind)).astype(np.uint64)


def _converted(ways: list[str], *given: Register) -> Register:
    *how, to, source = ways
    if "e2m1" in to + source or re.match(r"e[45]m[32]", to) or re.match(r"e[45]m[32]", source):
        raise NotImplementedError(f"cvt.{'.'.join(ways)} is not computed on virtual GPUs")
    if to in ("f16x2", "bf16x2"):
        high, low = (_converted([*how, to[:-2], source], each) for each in given)
        return low | (high << np.uint64(16))
    values = _read(given[0], source)
    if to == "tf32":
        return _as_tf32(values)
    if source[0] in "fb" and to[0] in "us":
        values = _clipped(next((ROUNDED[w] for w in how if w in ROUNDED), np.rint)(values), to)
    elif "sat" in how and to[0] == "f":
        values = np.clip(values, 0, 1)
    elif "relu" in how:
        values = np.maximum(values, 0)
    elif any(w in ROUNDED for w in how) and to[0] == "f":
        values = next(ROUNDED[w] for w in how if w in ROUNDED)(values)
    elif "sat" in how:
        values = _clipped(values, to)
    return _written(values.astype(np.float32 if to == "bf16" else _plain_type(to)), to)


def _plain_type(kind: str) -> Any:
    return np.dtype(f"{WIDTHS[kind[0]]}{_size(kind) // 8}")


def _clipped(values: Any, to: str) -> Any:
    limits = np.iinfo(_plain_type(to))
    inside = np.clip(np.nan_to_num(values.astype(np.float64)), limits.min, limits.max)
    return np.where(inside >= limits.max, limits.max, inside.astype(_plain_type(to)))


def _as_tf32(values: Any) -> Register:
    """To the nearest."""
    bits = values.view(np.uint32).astype(np.uint64)
    lost = np.uint64((1 << TF32_BITS) - 1)
    return np.where(np.isfinite(values), (bits + (lost + np.uint64(1)) // 2) & ~lost, bits)


COMPARISONS: dict[str, Callable[..., Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "lo": operator.lt,
    "ls": operator.le,
    "hi": operator.gt,
    "hs": operator.ge,
}
ROUNDED: dict[str, Callable[..., Any]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}
WITHOUT_EFFECT = ("fence", "membar", "griddepcontrol", "nanosleep", "bar", "prefetch")
COMPUTED: dict[str, Callable[..., Register]] = {
    "mov": lambda ways, a: a,
    "add": _plain(operator.add),
    "sub": _plain(operator.sub),
    "mul": _multiplied,
    "mad": _multiplied_and_added,
    "fma": _plain(lambda a, b, c: a * b + c),
    "div": _typed(lambda w, a, b: np.trunc(a / b) if a.dtype.kind != "f" else a / b),
    "rem": _plain(np.fmod),
    "abs": _plain(np.abs),
    "neg": _plain(operator.neg),
    "min": _typed(_chosen(least=True)),
    "max": _typed(_chosen(least=False)),
    "and": lambda ways, a, b: a & b,
    "or": lambda ways, a, b: a | b,
    "xor": lambda ways, a, b: a ^ b,
    "not": lambda ways, a: ~a & np.uint64(1 if ways[-1] == "pred" else 2 ** _size(ways[-1]) - 1),
    "shl": _shifted(left=True),
    "shr": _shifted(left=False),
    "shf": _funnel,
    "prmt": _permuted,
    "lop3": _any_logic,
    "bfe": _field,
    "setp": _compared,
    "selp": lambda ways, a, b, p: np.where(p != 0, a, b),
    "cvt": _converted,
    "ex2": _plain(np.exp2),
    "lg2": _plain(np.log2),
    "rcp": _plain(lambda a: 1 / a),
    "sqrt": _plain(np.sqrt),
    "rsqrt": _plain(lambda a: 1 / np.sqrt(a)),
    "sin": _plain(np.sin),
    "cos": _plain(np.cos),
    "tanh": _plain(np.tanh),
    "popc": lambda ways, a: np.bitwise_count(a).astype(np.uint64),
}
