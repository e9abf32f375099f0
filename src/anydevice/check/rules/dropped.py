"""Results that are dropped."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from anydevice.check.finding import Finding, Rule
from anydevice.check.source import statement_at, text_at
from anydevice.check.trace import Seen, Trace
from anydevice.plan.time.work import Transfer

MOVES = ("to", "cuda", "cpu")


class DroppedMove(Rule):
    """`x.to(device)` as a statement: a tensor's to() returns a new tensor."""

    name = "dropped-move"
    kind = "error"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each such statement, once."""
        found = set[tuple[str, int]]()
        for one in trace.seen:
            moved = isinstance(one.entry, Transfer) and one.direct
            if moved and one.site.own not in found and (name := _dropped(one)):
                found.add(one.site.own)
                text = text_at(*one.site.own)
                yield self.finding(
                    f"{text}: a tensor's to() returns a new tensor, which is dropped here.",
                    f"{name} = {text}",
                    one.site,
                )


def _dropped(one: Seen) -> str:
    """The name of what a statement moves for nothing."""
    statement = statement_at(*one.site.own)
    if not isinstance(statement, ast.Expr) or not isinstance(call := statement.value, ast.Call):
        return ""
    function = call.func
    moves = isinstance(function, ast.Attribute) and function.attr in MOVES
    return ast.unparse(function.value) if moves else ""  # type: ignore[attr-defined]
