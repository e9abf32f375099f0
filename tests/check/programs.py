"""Programs with one mistake each, and the same programs without it.

A file in `programs/` is both: a line that ends in `# bad` is of the mistake alone, one that ends in
`# good` of the program without it. `# bad: rule` is the line at which the rule finds it; if
no code stands before it, any line will do. `# with: portable` and
`# with: 2 ranks` say how it is checked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HOW = "# with: "
FOLDER = Path(__file__).parent / "programs"
BAD, GOOD = re.compile(r"\s*# bad(?:: ([\w-]+))?$"), re.compile(r"\s*# good$")


@dataclass(frozen=True)
class Pair:
    """A program with a mistake, and its twin."""

    name: str
    bad: str
    good: str
    rule: str
    line: int | None  # of the bad program; None: any
    how: str = ""  # it is checked


def pair(name: str) -> Pair:
    """The programs of this file."""
    bad: list[str] = []
    good: list[str] = []
    rule, line = "", None
    lines = (FOLDER / f"{name}.py").read_text().splitlines()
    how = lines.pop(0).removeprefix(HOW) if lines[0].startswith(HOW) else ""
    for text in lines:
        if found := BAD.search(text):
            bad.append(BAD.sub("", text))
            if found[1]:
                rule, line = found[1], len(bad) if bad[-1] else None
        elif GOOD.search(text):
            good.append(GOOD.sub("", text))
        else:
            bad.append(text)
            good.append(text)
    return Pair(name, "\n".join(bad) + "\n", "\n".join(good) + "\n", rule, line, how)


def names() -> list[str]:
    """All of them."""
    return sorted(path.stem for path in FOLDER.glob("*.py"))
