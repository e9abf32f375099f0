"""Where Dynamo breaks a graph, or compiles again, and why."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any
from unittest.mock import patch

from anydevice.frames import is_own, line_text, own_line
from anydevice.virtual.compiled.names import MissingNameError, dynamo_names

DYNAMO = os.path.join("torch", "_dynamo", "")
ATTEMPT = re.compile(r"^\d+/\d+: ")  # which compilation a guard is of
IN_FRAMES = re.compile(r"  # .*$")  # the line that a guard was made for


@dataclass(frozen=True)
class Cause:
    """Why something happened while a program was compiled.

    Attributes:
        where: The line, `train.py:12`.
        reason: What Dynamo says.
    """

    where: str
    reason: str


@dataclass
class Traced:
    """What Dynamo made of a program.

    Attributes:
        graphs: How many graphs it compiled.
        breaks: Where it left a graph, each line and reason once.
        recompilations: Where it compiled a function again.
    """

    graphs: int = 0
    breaks: list[Cause] = field(default_factory=list)
    recompilations: list[Cause] = field(default_factory=list)


@contextmanager
def tracing() -> Iterator[Traced]:
    """Inside the block, what Dynamo does is noted; MissingNameError if it cannot be."""
    names, traced = dynamo_names(), Traced()
    before = names.counters["stats"]["unique_graphs"]
    with ExitStack() as patches:
        for owner, name, value in _noting(names, traced):
            patches.enter_context(patch.object(owner, name, value))
        try:
            yield traced
        finally:
            traced.graphs = names.counters["stats"]["unique_graphs"] - before


def as_written(code: CodeType) -> CodeType:
    """The code that Dynamo compiled to this one; the same if it did not make it."""
    if "torch._dynamo.convert_frame" not in sys.modules:
        return code
    try:
        originals = dynamo_names().originals
    except MissingNameError:
        return code
    return originals.get(code, code)  # type: ignore[no-any-return]


def _noting(names: Any, traced: Traced) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    log_break, reasons_of = names.log_graph_break, names.recompilation_reasons

    def logged(self: Any, code_options: Any, reason: str, exc: Any) -> Any:
        if not exc.logged:
            where = _place(code_options, getattr(exc, "real_stack", None))
            if (cause := Cause(where, _explained(reason))) not in traced.breaks:
                traced.breaks.append(cause)
        return log_break(self, code_options, reason, exc)

    def noted(entries: Any, frame: Any, *arguments: Any, **options: Any) -> Any:
        reasons = reasons_of(entries, frame, *arguments, **options)
        code = frame.f_code
        reason = next(iter(reasons), "no reason is known")
        first = IN_FRAMES.sub("", ATTEMPT.sub("", reason.splitlines()[0]))
        where = line_text(code.co_filename, code.co_firstlineno)
        traced.recompilations.append(Cause(where, first))
        return reasons

    yield names.Translator, "log_graph_break", logged
    yield names.frames, "get_and_maybe_log_recompilation_reasons", noted


def _place(code: Any, stack: Any) -> str:
    """The innermost line of the user's own among what was traced, else the innermost.

    If all that was traced is Dynamo's, as with an LSTM, which it does not trace, the line that
    called it.
    """
    lines = [(frame.filename, frame.lineno) for frame in stack or ()]
    lines = lines or [(code["co_filename"], code["co_firstlineno"])]
    own = [line for line in lines if is_own(line[0])]
    traced = own or [line for line in lines if DYNAMO not in line[0]]
    return line_text(*traced[-1]) if traced else own_line(sys._getframe())


def _explained(reason: str) -> str:
    """Dynamo's explanation, or the first line of its message."""
    title, *details = reason.splitlines()
    found = (line.partition("Explanation:")[2].strip() for line in details)
    return next(filter(None, found), title)
