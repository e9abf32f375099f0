"""What a check found: a table for a person, JSON and SARIF for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.text import Text

from anydevice.check import sarif
from anydevice.check.finding import KINDS, Finding, hint_text
from anydevice.check.run import Checked
from anydevice.check.settings import Settings
from anydevice.check.source import is_accepted
from anydevice.files import write_named
from anydevice.plan.hollow.steps import WHOLE
from anydevice.tables import Shown, Table
from anydevice.text import UNSET, counted, duration_text, size_text

SMALL_SECONDS, SMALL_SHARE = 1e-4, 0.005  # what costs less than both is folded


@dataclass(repr=False)
class Report(Shown):
    """What `ad.check()` returns: the findings, the most expensive first after the errors.

    It shows itself as a table in a terminal and in a notebook.

    Attributes:
        program: The name of the program or function.
        gpus: The kinds of GPU that it was checked for.
        findings: What was found.
        small: Findings that cost less than 0.1 ms and 0.5% of a step on each card.
        hints: Changes to consider that would save more: they are no mistakes and fail no check.
        step: Seconds of a step, by kind of GPU.
        fixed: Seconds of a step once everything in `findings` and `small` is fixed.
        notes: What was assumed, as sentences.

    Example:
        >>> report = ad.check(train, ["t4", "h100"])  # doctest: +SKIP
        >>> [(f.rule, f.site.line, f.seconds["t4"]) for f in report.findings]  # doctest: +SKIP
        [('pageable-copy', 12, 0.000611)]
    """

    program: str
    gpus: list[str]
    settings: Settings
    findings: list[Finding] = field(default_factory=list)
    small: list[Finding] = field(default_factory=list)
    hints: list[Finding] = field(default_factory=list)
    step: dict[str, float] = field(default_factory=dict)
    fixed: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    steps: int = 0
    unit: str = "step"
    timelines: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, program: str, settings: Settings, checked: Checked) -> Report:
        """The report of a run: sorted, without what is accepted, the small ones apart."""
        report = cls(program, list(settings.gpus), settings)
        report.fill(checked)
        return report

    def fill(self, checked: Checked) -> None:
        """Takes over what a run has found."""
        self.steps, self.unit, self.notes = checked.steps, checked.unit, checked.notes
        self.step, self.fixed, self.timelines = checked.step, checked.fixed, checked.timelines
        for finding in sorted(checked.findings, key=_order):
            if finding.rule in self.settings.ignore or _is_accepted(finding):
                continue
            listed = self.small if _is_small(finding, checked.step) else self.findings
            (self.hints if finding.hint else listed).append(finding)

    @property
    def errors(self) -> list[Finding]:
        """What is wrong on a card."""
        return [finding for finding in self.findings if finding.kind == "error"]

    @property
    def fails(self) -> bool:
        """Whether the command ends with exit code 1."""
        return self.settings.fails(self.findings, self.step)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "program": self.program,
            "gpus": self.gpus,
            "fails": self.fails,
            "steps": self.steps,
            "unit": self.unit,
            "step_seconds": self.step,
            "fixed_seconds": self.fixed,
            "findings": [finding.to_dict() for finding in self.findings],
            "small": [finding.to_dict() for finding in self.small],
            "hints": [finding.to_dict() for finding in self.hints],
            "notes": self.notes,
        }

    def to_json(self) -> str:
        """The findings and the times as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def to_sarif(self, root: str | Path = ".") -> str:
        """The findings as SARIF, with files relative to `root`: GitHub shows them in a diff."""
        return sarif.document([*self.findings, *self.small], Path(root))

    def write_sarif(self, path: str | Path) -> Path:
        """Writes the SARIF file, with files relative to the current folder."""
        write_named(Path(path), self.to_sarif().encode())
        return Path(path)

    def write_page(self, path: str | Path) -> Path:
        """Writes an HTML page: the lines of each finding next to a step's timeline."""
        from anydevice.check.page.page import report_page

        write_named(Path(path), report_page(self))
        return Path(path)

    def _shown(self) -> Iterator[Table | Text | Shown]:
        yield Text(self._headline())
        if self.findings:
            yield self._table()
        if self.small:
            yield Text(self._small())
        for hint in self.hints:
            yield Text(hint_text(hint))
        if self.notes:
            yield Text("\n".join(self.notes), style="dim")

    def _headline(self) -> str:
        if not self.findings:
            return f"{self.program}: no mistakes found{self._seen()}."
        errors = len(self.errors)
        others = len(self.findings) - errors
        parts = [counted(errors, "error")] * bool(errors)
        parts += [counted(others, "other finding" if errors else "finding")] * bool(others)
        return f"{self.program}: {' and '.join(parts)}{self._seen()}."

    def _seen(self) -> str:
        if not self.steps or self.unit == WHOLE:
            return ""
        units = self.unit if self.steps == 1 else f"{self.unit}es" * self.unit.endswith("s")
        return f" in {self.steps} {units or self.unit + 's'}"

    def _table(self) -> Table:
        table = Table(("line", "finding", "per step", *self.gpus), right=("per step", *self.gpus))
        for finding in self.findings:
            table.rows.append((_lines(finding), _text(finding), _often(finding),
                               *(_cost(finding, gpu) for gpu in self.gpus)))  # fmt: skip
            table.rows.append(("", f"Fix: {finding.fix}", "", *[""] * len(self.gpus)))
        if self.step and self.unit != WHOLE:
            now = f"the {self.unit} now"
            for name, times in ((now, self.step), ("after all fixes", self.fixed)):
                cells = [duration_text(times.get(gpu, 0.0)) for gpu in self.gpus]
                table.rows.append(("", name, "", *cells))
        return table

    def _small(self) -> str:
        costs = {g: sum(f.seconds.get(g, 0.0) for f in self.small) for g in self.gpus}
        texts = ", ".join(f"{duration_text(max(0.0, s))} on {g}" for g, s in costs.items())
        lines = ", ".join(dict.fromkeys(f"{f.site} ({f.rule})" for f in self.small))
        return f"Small, {texts} together: {lines}."


def _lines(finding: Finding) -> str:
    site = finding.site
    return str(site) if site else UNSET


def _text(finding: Finding) -> str:
    mark = "ERROR " if finding.kind == "error" else ""
    likely = " (likely)" if finding.confidence == "likely" else ""
    calls = [place for place in finding.site.frames[1:] if place.function != "<module>"]
    by = list(dict.fromkeys(map(str, calls)))[:2]
    inside = f" In {finding.site.library}." if finding.site.library else ""
    chain = f" Called at {', '.join(by)}." if by else ""
    return f"{mark}{finding.rule}{likely}: {finding.what}{inside}{chain}{_more(finding)}"


def _more(finding: Finding) -> str:
    """What it costs once the others are fixed, if that is much more."""
    more = {
        gpu: cost
        for gpu, cost in finding.together.items()
        if cost > 2 * max(0.0, finding.seconds.get(gpu, 0.0)) and cost >= SMALL_SECONDS
    }
    texts = (f"{duration_text(cost)} on {gpu}" for gpu, cost in more.items())
    return f" Once all others are fixed it costs {', '.join(texts)}." if more else ""


def _often(finding: Finding) -> str:
    if not finding.per:
        return ""
    batch = " (eval)" if finding.per == "evaluation batch" else ""
    return f"{finding.count * finding.steps:.3g}{batch}"


def _cost(finding: Finding, gpu: str) -> str:
    if gpu in finding.seconds:
        return duration_text(max(0.0, finding.seconds[gpu]))
    return size_text(finding.bytes) if finding.bytes else ""


def _is_accepted(finding: Finding) -> bool:
    places = [(place.file, place.line) for place in finding.site.frames]
    return any(is_accepted(*place, finding.rule) for place in places)


def _is_small(finding: Finding, step: dict[str, float]) -> bool:
    if finding.kind != "slow" or not finding.seconds:
        return False
    costs = [*finding.seconds.values(), *finding.together.values()]
    shares = (finding.together.get(gpu, 0.0) / whole for gpu, whole in step.items() if whole)
    share = max(finding.share(step), *shares, 0.0)
    return max(costs) < SMALL_SECONDS and share < SMALL_SHARE


def _order(finding: Finding) -> tuple[Any, ...]:
    cost = max(finding.seconds.values(), default=0.0)
    return KINDS.index(finding.kind), -cost, -finding.bytes, finding.site.own
