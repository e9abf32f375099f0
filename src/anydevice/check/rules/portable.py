"""What fails where there is no CUDA."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from anydevice.check.finding import Finding, Rule
from anydevice.check.source import calls_at, is_guarded
from anydevice.check.trace import Trace


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
            for place in site.frames[:1]:
                own = place.file, place.line
                if own in found or not _names_cuda(*own) or is_guarded(*own):
                    continue
                found.add(own)
                yield self.finding(
                    "A GPU is asked for by name, whether there is one or not.",
                    "device = torch.accelerator.current_accelerator() or torch.device('cpu')",
                    site,
                )


def _names_cuda(file: str, line: int) -> bool:
    for call in calls_at(file, line):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "cuda" and not call.args:
            return True
        for part in (*call.args, *(keyword.value for keyword in call.keywords)):
            if isinstance(part, ast.Constant) and str(part.value).startswith("cuda"):
                return True
    return False
