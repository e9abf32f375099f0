"""What fails where there is no CUDA."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from anydevice.check.finding import Finding, Rule
from anydevice.check.source import assigned, calls_at, is_guarded
from anydevice.check.trace import Place, Site, Trace


class HardCodedCuda(Rule):
    """ "cuda" or .cuda() that runs without a look at whether there is a GPU (--portable)."""

    name = "hard-coded-cuda"
    kind = "error"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each line that uses a GPU by that name."""
        if not trace.facts.get("portable"):
            return
        found = set[tuple[str, int]]()
        for site in trace.sites():
            for named in _named_at(site):
                if named.own not in found and not is_guarded(*named.own):
                    found.add(named.own)
                    yield self.finding(
                        "A GPU is asked for by name, whether there is one or not.",
                        "device = torch.accelerator.current_accelerator() or torch.device('cpu')",
                        named,
                    )


def _named_at(site: Site) -> Iterator[Site]:
    """Where what this line uses says "cuda": the line itself, or what assigned its variable."""
    for place in site.frames[:1]:
        calls = list(calls_at(place.file, place.line))
        if any(map(_names_cuda, calls)):
            yield site
        for name in {
            part.id for call in calls for part in _given(call) if isinstance(part, ast.Name)
        }:
            values = list(assigned(place.file, name))
            if values and all(_is_cuda(value) for _, value in values):
                for line, _ in values:
                    yield Site((Place(place.file, line, place.function),))


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _names_cuda(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Attribute) and call.func.attr == "cuda" and not call.args:
        return True
    return any(map(_is_cuda, _given(call)))


def _is_cuda(value: ast.expr) -> bool:
    """Whether it is "cuda", or torch.device("cuda")."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) in ("torch.device", "device"):
        return any(map(_is_cuda, value.args))
    return isinstance(value, ast.Constant) and str(value.value).startswith("cuda")
