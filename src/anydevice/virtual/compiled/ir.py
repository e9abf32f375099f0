"""What a kernel does, from Triton's IR of it: products, and bytes loaded and stored.

The IR is text, in which loops have bounds that depend on the arguments and on the program's number.
It is evaluated line by line, for some of the launch's programs, without computing any tensor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import ceil, prod

SAMPLES = 24  # programs of a launch that are evaluated

Number = int | float | None  # None: not known


@dataclass
class Work:
    """What the programs of a launch do together."""

    products: dict[tuple[int, int, int, int, str], float] = field(default_factory=dict)  # how often
    loaded: dict[str, float] = field(default_factory=dict)  # bytes, by the argument's name
    stored: dict[str, float] = field(default_factory=dict)


@dataclass
class _Block:
    """A loop, a branch or a function: how often its lines run."""

    times: float
    kind: str = ""
    unknown: bool = False  # whether a branch's condition is


def work(text: str, arguments: dict[str, Number], grid: tuple[int, int, int]) -> Work:
    """The work of a launch: `arguments` by the kernel's names for them, tensors as None."""
    lines = [line.strip() for line in text.splitlines()]
    programs = prod(grid)
    chosen = list(_chosen(grid, programs))
    total = Work()
    for program in chosen:
        _Program(lines, arguments, program, grid).run(total, programs / len(chosen))
    return total


def _chosen(grid: tuple[int, int, int], programs: int) -> Iterator[tuple[int, int, int]]:
    count = min(programs, SAMPLES)
    for number in range(count):
        at = int((number + 0.5) * programs / count)
        x, y = at % grid[0], at // grid[0] % grid[1]
        yield x, y, at // (grid[0] * grid[1])


class _Program:
    """One program of the launch."""

    def __init__(
        self,
        lines: list[str],
        arguments: dict[str, Number],
        program: tuple[int, int, int],
        grid: tuple[int, int, int],
    ) -> None:
        self.lines, self.arguments = lines, arguments
        self.place = {axis: (program[i], grid[i]) for i, axis in enumerate("xyz")}
        self.values: dict[str, Number] = {}
        self.roots: dict[str, str] = {}  # the argument that a pointer comes from
        self.blocks: list[_Block] = []

    def run(self, total: Work, weight: float) -> None:
        """Adds this program's work, so many times."""
        for line in self.lines:
            if line.startswith("tt.func"):
                self._enter_function(line)
            elif line.startswith("}"):
                self._close(line)
            elif line.endswith("{") or re.search(r"\{ *(loc\(.*\))?$", line):
                self._open(line)
            elif self.blocks:
                self._line(line, total, weight * prod(block.times for block in self.blocks))

    def _enter_function(self, line: str) -> None:
        self.blocks.append(_Block(1.0, "function"))
        named = re.findall(r"(%[\w.]+): [^%]*?loc\(\"(\w+)\"", line)
        listed = re.findall(r"(%[\w.]+): ", line)
        for value, name in named or zip(listed, self.arguments, strict=False):
            self.roots[value] = name
            if not named or value == f"%{name}":  # a descriptor is several: its pointer, its sizes
                self.values[value] = self.arguments.get(name)

    def _close(self, line: str) -> None:
        if not self.blocks:
            return
        block = self.blocks.pop()
        if "else" in line and block.kind == "if":
            self.blocks.append(
                _Block(1.0 - block.times if block.times in (0.0, 1.0) else 1.0, "if")
            )

    def _open(self, line: str) -> None:
        found = re.search(r"scf\.for (%[\w.]+) = (%[\w.]+) to (%[\w.]+) step (%[\w.]+)", line)
        if found:
            self._open_loop(line, *found.groups())
        elif "scf.if" in line:
            condition = re.search(r"scf\.if (%[\w.]+)", line)
            taken = self.values.get(condition[1]) if condition else None
            times = 1.0 if taken is None else float(bool(taken))
            self.blocks.append(_Block(times, "if", unknown=taken is None))
        elif self.blocks:
            self.blocks.append(_Block(1.0))

    def _open_loop(self, line: str, index: str, low: str, high: str, step: str) -> None:
        begin, end, by = (self.values.get(name) for name in (low, high, step))
        times = 1.0
        if begin is not None and end is not None and by:
            times = float(max(0, ceil((end - begin) / by)))
            self.values[index] = begin + (times - 1) / 2 * by  # in the mean
        for name, first in re.findall(r"(%[\w.]+) = (%[\w.#]+)[,)]", line):
            if first in self.roots:
                self.roots[name] = self.roots[first]
        self.blocks.append(_Block(times))

    def _line(self, line: str, total: Work, times: float) -> None:
        found = re.match(r"(?:(%[\w.]+)(?::\d+)? = )?\"?([\w.]+)\"? ?(.*)", line)
        if not found or not times:
            return
        result, op, rest = found.groups()
        if op in ("tt.dot", "tt.dot_scaled", "ttng.warp_group_dot"):
            _add_product(rest, total, times)
        elif op in LOADS or op in STORES:
            self._access(op, rest, total, times)
        elif result:
            operands = re.findall(r"%[\w.#]+", rest.partition(" : ")[0])
            if operands and operands[0] in self.roots and op in POINTERS:
                self.roots[result] = self.roots[operands[0]]
            self.values[result] = self._value(op, rest, operands)

    def _access(self, op: str, rest: str, total: Work, times: float) -> None:
        pointer = re.search(r"%[\w.#]+", rest)
        shapes = re.findall(r"tensor<([^>]*?)(?:!tt\.ptr<)?(\w+)>", rest)
        if not pointer or pointer[0] not in self.roots:
            return
        dims, kind = shapes[-1] if shapes else ("", _scalar(rest))
        size = prod(int(n) for n in re.findall(r"(\d+)x", dims)) * bits(kind) / 8
        moved = total.loaded if op in LOADS else total.stored
        root = self.roots[pointer[0]]
        moved[root] = moved.get(root, 0.0) + size * times

    def _value(self, op: str, rest: str, operands: list[str]) -> Number:
        if op == "arith.constant":
            constant = re.match(r"(-?[\d.]+(?:e[+-]?\d+)?|true|false)\b", rest)
            words: dict[str, Number] = {"true": 1, "false": 0}
            if not constant:
                return None
            text = constant[1]
            return words[text] if text in words else float(text) if "." in text else int(text)
        if op in ("tt.get_program_id", "tt.get_num_programs"):
            axis = re.match(r"[xyz]", rest)
            return self.place[axis[0]][op.endswith("programs")] if axis else None
        values = [self.values.get(name) for name in operands]
        if op == "arith.select" and len(values) == 3 and values[0] is not None:
            return values[1] if values[0] else values[2]
        if any(value is None for value in values) or not values:
            return None
        if op in ("arith.cmpi", "arith.cmpf"):
            rule = COMPARED.get(rest.partition(",")[0].strip()[-2:])
            return int(rule(*values)) if rule else None
        compute = COMPUTED.get(op.partition(".")[2])
        try:
            return compute(*values) if compute else None
        except (TypeError, ZeroDivisionError):
            return None


LOADS = ("tt.load", "tt.descriptor_load", "tt.descriptor_gather")
STORES = (
    *("tt.store", "tt.descriptor_store", "tt.atomic_rmw", "tt.atomic_cas"),
    *("tt.descriptor_reduce", "tt.descriptor_scatter"),
)
POINTERS = (
    *("tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.bitcast", "tt.reshape"),
    *("tt.make_tensor_ptr", "tt.advance", "tt.make_tensor_descriptor", "tt.trans", "arith.select"),
)
Compute = Callable[..., Number]
COMPUTED: dict[str, Compute] = {
    **{name: lambda a, b: a + b for name in ("addi", "addf")},
    **{name: lambda a, b: a - b for name in ("subi", "subf")},
    **{name: lambda a, b: a * b for name in ("muli", "mulf")},
    **{name: lambda a, b: int(a / b) for name in ("divsi", "divui")},
    **{name: lambda a, b: a - int(a / b) * b for name in ("remsi", "remui")},
    **dict.fromkeys(("minsi", "minui"), min),
    **dict.fromkeys(("maxsi", "maxui"), max),
    **{name: lambda a: a for name in ("extsi", "extui", "trunci", "index_cast", "sitofp")},
    "shli": lambda a, b: int(a) << int(b),
    "shrsi": lambda a, b: int(a) >> int(b),
    "andi": lambda a, b: int(a) & int(b),
    "ori": lambda a, b: int(a) | int(b),
    "divf": lambda a, b: a / b,
}
COMPARED: dict[str, Callable[..., bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def _add_product(rest: str, total: Work, times: float) -> None:
    shapes = re.findall(r"tensor<((?:\d+x)+)([a-z]\w*)", rest)
    if len(shapes) < 2:
        return
    (left, kind), (right, _) = shapes[0], shapes[1]
    a, b = ([int(n) for n in dims.rstrip("x").split("x")] for dims in (left, right))
    key = (prod(a[:-2]), a[-2], b[-1], a[-1], kind)
    total.products[key] = total.products.get(key, 0.0) + times


def _scalar(rest: str) -> str:
    found = re.search(r"!tt\.ptr<(\w+)>", rest)
    return found[1] if found else "f32"


def bits(kind: str) -> int:
    """The bits of a type's name: 16 of `bf16`."""
    if kind.startswith("f8"):
        return 8
    found = re.search(r"\d+", kind)
    return max(8, int(found[0])) if found else 32
