"""Findings as SARIF 2.1.0, which GitHub's code scanning shows on a diff."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anydevice.check.finding import Finding
from anydevice.check.rules import RULES
from anydevice.check.trace import Place
from anydevice.text import duration_text
from anydevice.version import __version__

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"error": "error", "slow": "warning", "memory": "warning"}


def document(findings: Sequence[Finding], root: Path) -> str:
    """The whole file."""
    rules = [{"id": rule.name, "shortDescription": {"text": _first_line(rule)}} for rule in RULES]
    known = {rule["id"] for rule in rules}
    rules += [{"id": name, "shortDescription": {"text": "An error that a card raises."}}
              for name in sorted({f.rule for f in findings} - known)]  # fmt: skip
    driver = {"name": "anydevice check", "version": __version__, "rules": rules}
    results = [_result(finding, root) for finding in findings]
    run = {"tool": {"driver": driver}, "results": results, "columnKind": "unicodeCodePoints"}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _first_line(rule: object) -> str:
    return str(rule.__doc__).partition("\n")[0]


def _result(finding: Finding, root: Path) -> dict[str, Any]:
    costs = ", ".join(f"{duration_text(max(0.0, s))} on {g}" for g, s in finding.seconds.items())
    price = f" Costs per step: {costs}." if costs else ""
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": LEVELS[finding.kind],
        "message": {"text": f"{finding.what}{price} Fix: {finding.fix}"},
        "properties": {"confidence": finding.confidence, "secondsPerStep": finding.seconds},
    }
    if finding.site.frames:
        result["locations"] = [_location(finding.site.frames[0], root)]
        result["relatedLocations"] = [
            {**_location(place, root), "message": {"text": f"called by {place.function}"}}
            for place in finding.site.frames[1:]
        ]
    return result


def _location(place: Place, root: Path) -> dict[str, Any]:
    path = Path(place.file).resolve()
    inside = path.is_relative_to(root.resolve())
    uri = path.relative_to(root.resolve()).as_posix() if inside else path.as_uri()
    region = {"startLine": max(1, place.line)}
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}
