"""The scene of an error: for each of the user's frames, what the failing expression names."""

import ast
import linecache
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import nn

# Code whose lines a user cannot mend: PyTorch's and our own.
_OURS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
_MISSING = object()


@dataclass(frozen=True)
class Subject:
    """A tensor, module or optimizer as the user's code names it: `batch['x']`, `self.fc1`."""

    text: str
    value: Any

    @property
    def devices(self) -> set[torch.device]:
        """The devices it lives on; a split module has several."""
        if isinstance(self.value, torch.Tensor):
            return {self.value.device}
        if isinstance(self.value, nn.Module):
            return module_devices(self.value)
        return set()


@dataclass(frozen=True, eq=False)
class Scene:
    """One frame of the traceback, at the expression that failed."""

    frame: FrameType
    line: int
    position: tuple[int, int, int, int] | None

    @property
    def place(self) -> str:
        """File and line, as short as one finds it."""
        return f"{Path(self.frame.f_code.co_filename).name}:{self.line}"

    @property
    def is_users(self) -> bool:
        """Whether the frame is code that the user can mend."""
        return not self.frame.f_code.co_filename.startswith(_OURS)

    @cached_property
    def tree(self) -> ast.AST | None:
        """The syntax tree of the frame's file or notebook cell, if its source is at hand."""
        lines = linecache.getlines(self.frame.f_code.co_filename, self.frame.f_globals)
        try:
            return ast.parse("".join(lines)) if lines else None
        except SyntaxError:  # the file has changed since it was loaded
            return None

    @cached_property
    def expression(self) -> ast.AST | None:
        """The smallest piece of syntax around the instruction that failed."""
        if self.tree is None or self.position is None:
            return None
        around = [node for node in ast.walk(self.tree) if _contains(node, self.position)]
        return min(around, key=_extent, default=None)

    @cached_property
    def subjects(self) -> list[Subject]:
        """Tensors, modules and optimizers that the expression names; without source, all locals."""
        if self.expression is None:
            named = [Subject(name, value) for name, value in self.frame.f_locals.items()]
        else:
            named = list(self._named(self.expression))
        found: list[Subject] = []
        for subject in (part for whole in named for part in _parts(whole)):
            if not any(subject.value is other.value for other in found):
                found.append(subject)
        return found

    @cached_property
    def arguments(self) -> list[Subject]:
        """What the function was given, the contents of *args and **kwargs included."""
        code = self.frame.f_code
        count = code.co_argcount + code.co_kwonlyargcount
        count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # *args, **kwargs
        given = [(name, self.frame.f_locals.get(name)) for name in code.co_varnames[:count]]
        return [part for name, value in given for part in _parts(Subject(name, value))]

    @cached_property
    def scope(self) -> ast.AST | None:
        """The function that the frame runs, as syntax; at a file's top, the file."""
        first = self.frame.f_code.co_firstlineno
        for node in ast.walk(self.tree) if self.tree else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                starts = {node.lineno, *(decorator.lineno for decorator in node.decorator_list)}
                if first in starts:
                    return node
        return self.tree

    def class_body(self, name: str) -> ast.AST | None:
        """The class of this name in the frame's file."""
        nodes = ast.walk(self.tree) if self.tree else ()
        return next((n for n in nodes if isinstance(n, ast.ClassDef) and n.name == name), None)

    def assigned(self, text: str, within: ast.AST | None) -> ast.expr | None:
        """The expression last assigned to `text` within this piece of syntax."""
        nodes = (
            [node for node in ast.walk(within) if isinstance(node, ast.Assign)] if within else []
        )
        found = [n for n in nodes if any(ast.unparse(target) == text for target in n.targets)]
        return max(found, key=lambda node: node.lineno).value if found else None

    def resolve(self, node: ast.AST) -> Any:
        """The value of a name, attribute or item, without running any of the user's code."""
        if isinstance(node, ast.Name):
            return self.frame.f_locals.get(node.id, self.frame.f_globals.get(node.id, _MISSING))
        if isinstance(node, ast.Attribute):
            return _attribute(self.resolve(node.value), node.attr)
        if isinstance(node, ast.Subscript):
            key = node.slice
            index = key.value if isinstance(key, ast.Constant) else self.resolve(key)
            return _item(self.resolve(node.value), index)
        return _MISSING

    def _named(self, node: ast.AST) -> Iterator[Subject]:
        value = self.resolve(node)
        if isinstance(value, torch.Tensor | nn.Module | torch.optim.Optimizer | Mapping | Sequence):
            yield Subject(ast.unparse(node), value)
            return
        for child in ast.iter_child_nodes(node):
            yield from self._named(child)


def scenes(traceback: TracebackType | None) -> list[Scene]:
    """The frames of a traceback, the innermost first."""
    found = []
    while traceback:
        code = traceback.tb_frame.f_code
        positions = list(code.co_positions())[traceback.tb_lasti // 2]
        exact = tuple(p for p in positions if p is not None)
        position = exact if len(exact) == 4 else None
        found.append(Scene(traceback.tb_frame, traceback.tb_lineno, position))
        traceback = traceback.tb_next
    return found[::-1]


def module_devices(module: nn.Module) -> set[torch.device]:
    """The devices of a module's parameters and buffers."""
    return {t.device for tensors in (module.parameters(), module.buffers()) for t in tensors}


def _parts(subject: Subject, depth: int = 2) -> Iterator[Subject]:
    """The subject itself, or what a container holds: `batch` gives `batch['x']`, `batch['y']`."""
    value = subject.value
    if isinstance(value, torch.Tensor | nn.Module | torch.optim.Optimizer):
        yield subject
    elif depth and isinstance(value, dict):
        for key, item in list(value.items())[:50]:
            yield from _parts(Subject(f"{subject.text}[{key!r}]", item), depth - 1)
    elif depth and isinstance(value, list | tuple):
        for index, item in enumerate(value[:50]):
            yield from _parts(Subject(f"{subject.text}[{index}]", item), depth - 1)


def _attribute(owner: Any, name: str) -> Any:
    """An attribute that is simply stored; properties are not run."""
    if isinstance(owner, nn.Module):
        for stored in (owner._parameters, owner._buffers, owner._modules):
            if name in stored:
                return stored[name]
    if owner is _MISSING or isinstance(owner, torch.Tensor):
        return _MISSING
    return getattr(owner, "__dict__", {}).get(name, _MISSING)


def _item(owner: Any, index: Any) -> Any:
    if not isinstance(owner, dict | list | tuple | nn.Sequential | nn.ModuleList | nn.ModuleDict):
        return _MISSING
    try:
        return owner[index]
    except (KeyError, IndexError, TypeError):
        return _MISSING


def _contains(node: ast.AST, position: tuple[int, int, int, int]) -> bool:
    if not isinstance(node, ast.expr | ast.stmt):
        return False
    line, end_line, column, end_column = position
    starts_before = (node.lineno, node.col_offset) <= (line, column)
    end = (node.end_lineno or node.lineno, node.end_col_offset or 0)
    return starts_before and (end_line, end_column) <= end


def _extent(node: ast.AST) -> tuple[int, int]:
    assert isinstance(node, ast.expr | ast.stmt)
    lines = (node.end_lineno or node.lineno) - node.lineno
    return lines, (node.end_col_offset or 0) - node.col_offset
