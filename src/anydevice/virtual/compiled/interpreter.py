"""Runs Triton's kernels on virtual GPUs that compute, by Triton's interpreter, without copies."""

from __future__ import annotations

import ast
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from itertools import takewhile
from math import prod
from operator import index
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from anydevice.frames import line_text
from anydevice.notices import say_once
from anydevice.virtual.compiled import card_functions, driver, libdevice, numbers, ptx
from anydevice.virtual.compiled.along_an_axis import combined_by_slices
from anydevice.virtual.compiled.names import interpreter_names, triton_names
from anydevice.virtual.compiled.reach import OutOfBoundsError, Reach

# Note [How a kernel is interpreted]
# Triton's interpreter computes a kernel as Python with numpy, one program after the other. It is
# meant to be chosen before the kernels are decorated, and copies each tensor to the host and back.
# Here a kernel stays the JITFunction that it is on a card, and is interpreted when it is launched:
# the language is patched for the time of the launch, the kernel's source is compiled once as
# Python, and the pointers are those of the virtual GPU's own bytes.

SLOW = "Triton's kernels are computed by its interpreter on virtual GPUs, which is slow."


class KernelError(RuntimeError):
    """A kernel that failed, with its line."""


def launch(kernel: Any, arguments: tuple[Any, ...], named: dict[str, Any], grid: Any) -> None:
    """Computes a kernel for each program of the grid."""
    say_once(SLOW)
    numbers.prepare()
    ptx.prepare()
    bound = _bound(kernel, arguments, named)
    sizes = tuple(map(index, grid(bound) if callable(grid) else grid))[:3]
    sizes += (1,) * (3 - len(sizes))
    driver.check_launch(sizes, bound.values())
    reach = Reach(
        dict(_tensors(bound)),
        tables=any(isinstance(each, int) and each >= 2**32 for each in bound.values()),
        several=prod(sizes) > 1,
    )
    options = _options(kernel, named)
    with _language(reach, options), combined_by_slices(), np.errstate(all="ignore"):
        constant = {p.name for p in kernel.params if p.is_constexpr}
        given = {name: _given(each, name in constant) for name, each in bound.items()}
        _run_all(kernel, given, sizes, reach)
    if reach.conflict[0]:
        say_once(
            f"{kernel.__name__} ({_place(kernel)}): two of its programs store different values at "
            f"one address of {reach.conflict[0]}. On a card, which of them stays is chance."
        )


def called(kernel: Any, *arguments: Any, **named: Any) -> Any:
    """A function that a running kernel calls."""
    if not isinstance(interpreter_names().module._interpreter, Reach):
        raise RuntimeError("Cannot call @triton.jit'd outside of the scope of a kernel")
    return _as_python(kernel)(*arguments, **named)


def _bound(kernel: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name; what else was given are options of the compiler."""
    known = kernel.signature.parameters.keys() | _known_options()
    for name in named.keys() - known:
        raise KeyError(f"Keyword argument {name} was specified but unrecognised")
    own = {name: each for name, each in named.items() if name in kernel.signature.parameters}
    bound = kernel.signature.bind(*arguments, **own)
    bound.apply_defaults()
    return dict(bound.arguments)


@cache
def _known_options() -> frozenset[str]:
    return frozenset(each.name for each in fields(triton_names().Options))


def _options(kernel: Any, named: dict[str, Any]) -> Any:
    """What of the compiler's options changes what a kernel computes: asserts, and its threads."""
    import triton

    plain = interpreter_names().module.InterpreterOptions()
    debug = bool(named.get("debug", kernel.debug) or triton.knobs.runtime.debug)
    checks = debug and bool(named.get("sanitize_overflow", True))
    usual = {each.name: getattr(plain, each.name) for each in fields(plain)}
    own = {"debug": debug, "sanitize_overflow": checks, "num_warps": named.get("num_warps", 4)}
    return SimpleNamespace(**(usual | own))


def _run_all(kernel: Any, given: dict[str, Any], grid: tuple[int, ...], reach: Reach) -> None:
    builder, function = interpreter_names().builder, _as_python(kernel)
    builder.set_grid_dim(*grid)
    for x in range(grid[0]):
        for y in range(grid[1]):
            for z in range(grid[2]):
                builder.set_grid_idx(x, y, z)
                reach.program += 1
                try:
                    function(**given)
                except Exception as error:
                    raise _explained(kernel, (x, y, z), error) from error


def _explained(kernel: Any, program: tuple[int, ...], error: Exception) -> Exception:
    """The error with the kernel's line."""
    where = f"{kernel.__name__} at {_line(kernel, error)}, in program {program}"
    if isinstance(error, OutOfBoundsError):
        return OutOfBoundsError(
            f"expected a kernel that stays inside its tensors, got {where}, which {error}. On a "
            "card it meets other data there, or ends with an illegal memory access. "
            "Fix: mask the access."
        )
    text = str(error).strip() or type(error).__name__
    return KernelError(f"{where}: {type(error).__name__}: {text}")


def _line(kernel: Any, error: Exception) -> str:
    """The innermost line of a kernel that the error passed through."""
    own = {kernel.fn.__code__.co_filename, *_sources}
    walked = traceback.walk_tb(error.__traceback__)
    lines = [(f.f_code.co_filename, n) for f, n in walked if f.f_code.co_filename in own]
    return line_text(*lines[-1]) if lines else _place(kernel)


def _place(kernel: Any) -> str:
    return line_text(kernel.fn.__code__.co_filename, _line_of(kernel))


def line_in(kernel: Any, line: int) -> str:
    """A line of its source, from 1 on, in its file."""
    return line_text(kernel.fn.__code__.co_filename, int(kernel.starting_line_number) + line - 1)


def _line_of(kernel: Any) -> int:
    """That of its `def`, after its decorators."""
    before = (not line.lstrip().startswith("def ") for line in kernel.raw_src)
    return int(kernel.starting_line_number) + sum(takewhile(bool, before))


def _tensors(bound: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, each in bound.items():
        yield from _tensors_in(name, each)


def _tensors_in(name: str, each: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(each, torch.Tensor):
        yield name, each
    elif isinstance(each, tuple | list):
        for place, part in enumerate(each):
            yield from _tensors_in(f"{name}[{place}]", part)
    elif isinstance(base := getattr(each, "base", None), torch.Tensor):  # a descriptor, a view
        yield name, base


def _given(each: Any, constant: bool) -> Any:
    """An argument as the interpreter has it: numbers are of the types that a card would get."""
    if constant or each is None:
        return next((home.computed(each.__name__) for home, own in PLACES if own(each)), each)
    names, tl = interpreter_names(), libdevice.import_language()
    if isinstance(each, bool):
        return tl.tensor(names.Handle(np.array([each]), tl.int1), tl.int1)
    if isinstance(each, float):
        number = np.array([each], dtype=np.float32)
        return tl.tensor(names.Handle(number, tl.float32), tl.float32)
    if isinstance(each, tuple | list):
        parts = tuple(_given(part, False) for part in each)
        return type(each)(*parts) if hasattr(each, "_fields") else parts
    return names.converted(each)


# ---- the language while a kernel runs ----


@contextmanager
def _language(reach: Reach, options: Any) -> Iterator[None]:
    """Inside the block triton.language computes; nested launches see their own tensors."""
    import triton.language as tl

    names, jit = interpreter_names(), triton_names().JITFunction

    class Holder:
        """Names both modules, whose functions are patched then."""

        __globals__ = {"tl": tl, "core": tl.core}  # noqa: RUF012

    scope = names.patched(Holder)
    members = [(name, each) for name, each in vars(tl.tensor).items() if isinstance(each, jit)]
    try:
        for name, each in members:
            setattr(tl.tensor, name, _as_method(each))
        with (
            patch.object(names.module, "_interpreter", reach),
            patch.object(names.builder, "options", options),
            patch.object(tl.tensor, "__index__", _index),
            patch.object(tl.condition, "__bool__", _holds, create=True),
        ):
            yield
    finally:
        for name, each in members:
            setattr(tl.tensor, name, each)
        scope.restore()


def _index(number: Any) -> int:
    """Triton 3.6's own takes an array of one for a number, which numpy refuses."""
    return int(number.handle.data.item())


def _holds(loop: Any) -> bool:
    """Whether `while tl.condition(...)` runs its body again."""
    return bool(loop.condition)


def _as_method(kernel: Any) -> Callable[..., Any]:
    return lambda self, *rest, **named: called(kernel, self, *rest, **named)


# ---- the kernel as Python ----

_sources: set[str] = set()
_made: dict[int, tuple[str, Callable[..., Any]]] = {}
_kept: list[Any] = []


class _Rewriter(ast.NodeTransformer):
    """As Triton's: what is assigned becomes a tensor. And libdevice's functions are replaced."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self.scope = scope
        self.names: dict[str, Any] = {
            "_as_tensor": interpreter_names().semantic.to_tensor,
            "_with_type": _with_type,
        }

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        as_tensor = ast.Name("_as_tensor", ast.Load())
        node.value = ast.Call(as_tensor, [node.value, ast.Constant(False)], [])
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        """A loop's variable is a tensor, too: `i.to(tl.int64)`; that of tl.static_range is not."""
        self.generic_visit(node)
        if isinstance(node.target, ast.Name) and _counts(node.iter):
            value = ast.Name(node.target.id, ast.Load())
            as_tensor = ast.Call(
                ast.Name("_as_tensor", ast.Load()), [value, ast.Constant(False)], []
            )
            node.body.insert(0, ast.Assign([node.target], as_tensor))
            ast.copy_location(node.body[0], node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        value = self.scope.get(node.id)
        if isinstance(node.ctx, ast.Load) and triton_names().core.is_builtin(value):
            self.names[f"_tl_{node.id}"] = _patched(value)
            return ast.copy_location(ast.Name(f"_tl_{node.id}", ast.Load()), node)
        return self._replaced(node, value)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        value = self._named(node)
        replaced = self._replaced(node, value)
        if replaced is not node:
            return replaced
        self.generic_visit(node)
        if node.attr in ("value", "type") and isinstance(node.value, ast.Name):
            node.value = ast.Call(ast.Name("_with_type", ast.Load()), [node.value], [])
        return node

    def _named(self, node: ast.expr) -> Any:
        """What `tl.extra.cuda.smid` names: a global, or something in a module."""
        if isinstance(node, ast.Name):
            return self.scope.get(node.id)
        if not isinstance(node, ast.Attribute):
            return None
        owner = self._named(node.value)
        return getattr(owner, node.attr, None) if isinstance(owner, ModuleType) else None

    def _replaced(self, node: Any, value: Any) -> ast.AST:
        if not isinstance(node.ctx, ast.Load):
            return node  # type: ignore[no-any-return]
        for home, belongs in PLACES:
            if belongs(value):
                name = f"_extra_{value.__name__}"
                self.names[name] = home.computed(value.__name__)
                return ast.copy_location(ast.Name(name, ast.Load()), node)
        return node  # type: ignore[no-any-return]


# What triton.language.extra has for the card: computed here by Python.
PLACES: tuple[tuple[Any, Callable[[object], bool]], ...] = (
    (libdevice, libdevice.is_libdevice),
    (card_functions, card_functions.is_of_the_card),
)


def _patched(function: Any) -> Callable[..., Any]:
    """Triton's `gather = tl.gather` as it is while a kernel runs."""
    home, name = sys.modules[function.__module__], function.__name__
    return lambda *given, **named: getattr(home, name)(*given, **named)


def _with_type(value: Any) -> Any:
    """A constant has a type and a value in a kernel: `BLOCK.value`; here it is the value alone."""
    plain = isinstance(value, bool | int | float | str | tuple) or value is None
    return libdevice.import_language().constexpr(value) if plain else value


def _counts(iterated: ast.expr) -> bool:
    """Whether it is range() or tl.range()."""
    called = getattr(iterated, "func", None)
    return "range" in (getattr(called, "id", ""), getattr(called, "attr", ""))


def _as_python(kernel: Any) -> Callable[..., Any]:
    """The kernel as a Python function of the interpreter's tensors, made once."""
    source, made = _made.get(id(kernel), (None, None))
    if made is None or source != kernel.src:
        made = _rewritten(kernel)
        _made[id(kernel)] = kernel.src, made
        _kept.append(kernel)  # so that no other gets its id
    return made


def _rewritten(kernel: Any) -> Callable[..., Any]:
    function = kernel.fn
    rewriter = _Rewriter(kernel.get_capture_scope())
    tree = rewriter.visit(ast.parse(kernel.src))
    (definition,) = tree.body
    definition.decorator_list = []
    for argument in (*definition.args.posonlyargs, *definition.args.args):
        argument.annotation = None
    definition.returns = None
    file, line = function.__code__.co_filename, _line_of(kernel)
    if function.__module__.partition(".")[0] != "triton":
        _sources.add(file)
    ast.increment_lineno(tree, line - 1)
    closure = {**inspect.getclosurevars(function).nonlocals, **rewriter.names}
    around = ast.parse(f"def _around({', '.join(closure)}): return {definition.name}")
    around.body[0].body.insert(0, definition)  # type: ignore[attr-defined]
    ast.fix_missing_locations(around)
    made: dict[str, Any] = {}
    exec(compile(around, file, "exec"), function.__globals__, made)
    return made["_around"](**closure)  # type: ignore[no-any-return]
