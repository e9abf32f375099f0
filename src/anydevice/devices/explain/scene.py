"""The scene of an error: the user's frames, their source, and what names in it stand for."""

import ast
import inspect
import linecache
from collections import UserDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from types import FrameType, MemberDescriptorType, TracebackType
from typing import Any

import torch
from torch import nn

from anydevice.frames import is_own, line_text

MISSING = object()
Position = tuple[int, int, int, int]  # line, end line, column, end column


@dataclass(frozen=True)
class Subject:
    """A part of the user's expression: its text, and the tensor, module or device it stands for."""

    text: str
    value: Any
    devices: frozenset[torch.device]

    @property
    def is_split(self) -> bool:
        """Whether it is a module on more than one device."""
        return len(self.devices) > 1


def subject(text: str, value: Any) -> Subject | None:
    """The subject for a value that lives on devices, else None."""
    if isinstance(value, torch.Tensor):
        return Subject(text, value, frozenset([value.device]))
    if isinstance(value, nn.Module):
        return Subject(text, value, frozenset(module_devices(value)))
    return None


@dataclass(frozen=True, eq=False)
class Scene:
    """One frame of the traceback, at the expression that failed."""

    frame: FrameType
    line: int
    position: Position | None

    @property
    def place(self) -> str:
        """File and line, as short as one finds it."""
        return line_text(self.frame.f_code.co_filename, self.line)

    @property
    def is_library(self) -> bool:
        """Whether the frame is code that the user did not write."""
        return not is_own(self.frame.f_code.co_filename)

    @cached_property
    def scope(self) -> ast.AST | None:
        """The function that the frame runs, or the file if it is no function, as syntax."""
        code = self.frame.f_code
        lines = linecache.getlines(code.co_filename, self.frame.f_globals)
        first = 1 if code.co_name.startswith("<") else code.co_firstlineno
        block = lines if first == 1 else inspect.getblock(lines[first - 1 :])
        indented = bool(block) and block[0][:1] in (" ", "\t")
        try:  # not dedented, so that columns stay what they are
            tree = ast.parse("".join(["if 1:\n", *block] if indented else block))
        except SyntaxError:  # the file has changed since it was loaded
            return None
        return ast.increment_lineno(tree, first - 1 - indented) if block else None

    @cached_property
    def expression(self) -> ast.AST | None:
        """The smallest piece of syntax around the instruction that failed."""
        if self.scope is None or self.position is None:
            return None
        around = [node for node in ast.walk(self.scope) if _contains(node, self.position)]
        return min(around, key=_extent, default=None)

    @cached_property
    def arguments(self) -> list[Subject]:
        """What the function was given, the contents of *args and **kwargs included."""
        code = self.frame.f_code
        count = code.co_argcount + code.co_kwonlyargcount
        count += sum(bool(code.co_flags & f) for f in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS))
        given = ((name, self.frame.f_locals.get(name)) for name in code.co_varnames[:count])
        return [part for name, value in given for part in parts(name, value)]

    @cached_property
    def locals(self) -> list[Subject]:
        """All local tensors and modules: all that is known where there is no source."""
        found = (subject(name, value) for name, value in self.frame.f_locals.items())
        return [one for one in found if one]

    def resolve(self, node: ast.AST) -> Any:
        """The value of a name, attribute or item, without running any of the user's code."""
        if isinstance(node, ast.Name):
            return self.frame.f_locals.get(node.id, self.frame.f_globals.get(node.id, MISSING))
        if isinstance(node, ast.Attribute):
            return _attribute(self.resolve(node.value), node.attr)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return _item(self.resolve(node.value), node.slice.value)
        return MISSING

    def assignments(self, text: str) -> list[ast.Assign]:
        """Where the scope assigns to this name."""
        nodes = ast.walk(self.scope) if self.scope else ()
        return [node for node in nodes if isinstance(node, ast.Assign) and _assigns(node, text)]


def scenes(traceback: TracebackType | None) -> list[Scene]:
    """The frames of a traceback, the innermost first."""
    found = []
    while traceback:
        codes = traceback.tb_frame.f_code.co_positions()
        at = next(p for index, p in enumerate(codes) if index == traceback.tb_lasti // 2)
        position = None if None in at else at
        found.append(Scene(traceback.tb_frame, traceback.tb_lineno, position))  # type: ignore[arg-type]
        traceback = traceback.tb_next
    return found[::-1]


def forget_locals(frame: FrameType) -> None:
    """Let go of the snapshot that Python before 3.13 keeps in a running frame once it was read."""
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and isinstance(frame.f_locals, dict):
        frame.f_locals.clear()


def module_devices(module: nn.Module) -> set[torch.device]:
    """The devices of a module's parameters and buffers."""
    return {t.device for tensors in (module.parameters(), module.buffers()) for t in tensors}


def parts(text: str, value: Any, depth: int = 2) -> Iterator[Subject]:
    """The value itself, or what a container holds: `batch` gives `batch['x']`, `batch['y']`."""
    whole = subject(text, value)
    if whole:
        yield whole
    elif depth:
        for name, item in _contents(value):
            yield from parts(f"{text}{name}", item, depth - 1)


def _contents(value: Any) -> Iterator[tuple[str, Any]]:
    """A container's items, each by what follows the container's name in source."""
    if isinstance(value, UserDict):
        value = value.data
    if isinstance(value, dict):
        for key in list(dict.keys(value))[:50]:
            if isinstance(key, str | int):
                yield f"[{key!r}]", dict.__getitem__(value, key)
    elif isinstance(value, list | tuple):
        names = getattr(type(value), "_fields", None)  # of a named tuple
        for index, item in enumerate(_plain(value)[:50]):
            yield f".{names[index]}" if names else f"[{index}]", item


def _attribute(owner: Any, name: str) -> Any:
    """An attribute that is simply stored; properties are not run."""
    if isinstance(owner, nn.Module):
        for stored in (owner._parameters, owner._buffers, owner._modules):
            if name in stored:
                return stored[name]
    if owner is MISSING or isinstance(owner, torch.Tensor):
        return MISSING
    if isinstance(owner, tuple):
        return dict(_contents(owner)).get(f".{name}", MISSING)
    found = inspect.getattr_static(owner, name, MISSING)
    if isinstance(found, MemberDescriptorType):  # one of __slots__
        return found.__get__(owner)
    return MISSING if isinstance(found, property) else found


def _item(owner: Any, index: Any) -> Any:
    if isinstance(owner, UserDict):
        owner = owner.data
    try:
        if isinstance(owner, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            return owner[index]
        if isinstance(owner, dict):
            return dict.__getitem__(owner, index)
        return _plain(owner)[index] if isinstance(owner, list | tuple) else MISSING
    except (KeyError, IndexError, TypeError):
        return MISSING


def _plain(items: list[Any] | tuple[Any, ...]) -> list[Any]:
    """The items themselves, past what a subclass overrides."""
    iterate = list.__iter__ if isinstance(items, list) else tuple.__iter__
    return list(iterate(items))  # type: ignore[arg-type]


def _assigns(node: ast.Assign, text: str) -> bool:
    return any(ast.unparse(target) == text for target in node.targets)


def _contains(node: ast.AST, position: Position) -> bool:
    if not isinstance(node, ast.expr | ast.AugAssign):
        return False
    line, end_line, column, end_column = position
    end = (node.end_lineno or node.lineno, node.end_col_offset or 0)
    return (node.lineno, node.col_offset) <= (line, column) and (end_line, end_column) <= end


def _extent(node: ast.AST) -> tuple[int, int]:
    assert isinstance(node, ast.expr | ast.AugAssign)
    lines = (node.end_lineno or node.lineno) - node.lineno
    return lines, (node.end_col_offset or 0) - node.col_offset
