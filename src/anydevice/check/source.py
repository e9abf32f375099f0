"""What the program's source says at a line."""

from __future__ import annotations

import ast
import linecache
import os
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

READS = (".item(", ".detach(", ".cpu(", "float(", "int(")  # what keeps no graph
ACCEPTED = re.compile(r"#\s*anydevice:\s*ok\b[ :]*([\w, -]*)")


def text_at(file: str, line: int) -> str:
    """The line's text, without the space around it."""
    return linecache.getline(file, line).strip()


def is_accepted(file: str, line: int, rule: str) -> bool:
    """Whether `# anydevice: ok` stands at the statement of this line, for all rules or this one."""
    first, last = _extent(file, line)
    for number in range(first, last + 1):
        if found := ACCEPTED.search(linecache.getline(file, number)):
            named = [name.strip() for name in found[1].split(",") if name.strip()]
            return not named or rule in named
    return False


def _extent(file: str, line: int) -> tuple[int, int]:
    """The lines of the innermost simple statement here; those of a block are not its own."""
    statement = statement_at(file, line)
    if statement is None:
        return line, line
    if isinstance(body := getattr(statement, "body", None), list) and body:
        return line, line
    return statement.lineno, statement.end_lineno or statement.lineno


def statement_at(file: str, line: int) -> ast.stmt | None:
    """The innermost statement that has this line."""
    found = (node for node in _at(file, line) if isinstance(node, ast.stmt))
    return max(found, key=lambda node: node.lineno, default=None)


def calls_at(file: str, line: int) -> Iterator[ast.Call]:
    """The calls that stand at this line."""
    return (node for node in _at(file, line) if isinstance(node, ast.Call))


def function_at(file: str, line: int) -> ast.AST | None:
    """The innermost function that has this line; the module if there is none."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in _at(file, line) if isinstance(node, functions)]
    return max(found, key=lambda node: node.lineno) if found else _tree(file)


def _at(file: str, line: int) -> Iterator[ast.AST]:
    for node in _nodes(file):
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        if first and first <= line <= (last or first):
            yield node


def _nodes(file: str) -> tuple[ast.AST, ...]:
    return _parsed(file, _version(file))


def _tree(file: str) -> ast.AST | None:
    return next(iter(_nodes(file)), None)


def _version(file: str) -> object:
    """What changes when the file does: a notebook checks one that it edits."""
    linecache.checkcache(file)
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


@cache
def _parsed(file: str, version: object) -> tuple[ast.AST, ...]:
    try:
        return tuple(ast.walk(ast.parse("".join(linecache.getlines(file)))))
    except (SyntaxError, ValueError):
        return ()


def keeping(file: str, line: int) -> tuple[int, str] | None:
    """The statement that keeps what a line makes: `losses.append(loss)`; its line and its name."""
    names = set(targets_at(file, line))
    function = function_at(file, line)
    for node in ast.walk(function) if function else ():
        kept = _kept(node)
        plain = kept and not any(read in ast.unparse(kept[1]) for read in READS)
        if kept and plain and not names.isdisjoint(_names([kept[1]])):
            return node.lineno, kept[0]  # type: ignore[attr-defined]
    return None


def _kept(node: ast.AST) -> tuple[str, ast.AST] | None:
    """What keeps, and what is kept."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("append", "extend", "add", "appendleft") and node.args:
            return ast.unparse(node.func.value), node.args[0]
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return ast.unparse(node.target), node.value
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        return ast.unparse(node.targets[0].value), node.value
    return None


def targets_at(file: str, line: int) -> list[str]:
    """The names that the statement at this line assigns."""
    made = statement_at(file, line)
    return list(_names(getattr(made, "targets", None) or [getattr(made, "target", None)]))


def assigned(file: str, name: str) -> Iterator[tuple[int, ast.expr]]:
    """All that a file assigns to this name, each with its line."""
    for node in _nodes(file):
        if isinstance(node, ast.Assign) and any(ast.unparse(each) == name for each in node.targets):
            yield node.lineno, node.value


def _names(nodes: Any) -> Iterator[str]:
    for node in nodes:
        for part in ast.walk(node) if isinstance(node, ast.AST) else ():
            if isinstance(part, ast.Name):
                yield part.id


def is_guarded(file: str, line: int) -> bool:
    """Whether it runs only where it was asked if there is a GPU."""
    for node in _nodes(file):
        if isinstance(node, ast.If | ast.IfExp) and "available" in ast.unparse(node.test):
            last = max(getattr(part, "end_lineno", 0) or 0 for part in ast.walk(node))
            if node.lineno <= line <= last:
                return True
    return False


def clocks_subtracted(file: str, line: int) -> set[int]:
    """The lines that assign what is subtracted from the time that this line reads.

    `seconds = time.time() - start`, or `end = time.time()` with `end - start` elsewhere.
    """
    function = function_at(file, line)
    statement = statement_at(file, line)
    if function is None or statement is None:
        return set()
    subtracted = {
        ast.unparse(node.right)
        for node in ast.walk(statement)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and _calls(node.left)
    }
    kept = {ast.unparse(target) for target in getattr(statement, "targets", ())}
    subtracted |= {
        ast.unparse(node.right)
        for node in ast.walk(function)
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Sub)
        and ast.unparse(node.left) in kept
    }
    return {
        node.lineno
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and any(ast.unparse(target) in subtracted for target in node.targets)
    }


def _calls(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Call) for part in ast.walk(node))
