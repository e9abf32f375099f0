"""A check as one self-contained HTML page: lines of source next to a step's timeline."""

from __future__ import annotations

import linecache
from datetime import datetime
from typing import TYPE_CHECKING, Any

from anydevice.check.finding import Finding, hint_text
from anydevice.devices.catalogue import card
from anydevice.pages.frame import page, resource
from anydevice.version import __version__

if TYPE_CHECKING:
    from anydevice.check.report import Report

AROUND = 3  # lines before and after a finding


def report_page(report: Report) -> bytes:
    """The page as bytes of UTF-8."""
    data = {
        "program": report.program,
        "unit": report.unit,
        "cards": [_card(report, gpu) for gpu in report.gpus],
        "findings": [_finding(one) for one in report.findings],
        "small": [_finding(one) for one in report.small],
        "hints": [hint_text(one) for one in report.hints],
        "notes": report.notes,
        "made": f"{datetime.now():%Y-%m-%d %H:%M}",
        "version": __version__,
    }
    body, style, script = (
        resource("anydevice.check.page", name) for name in ("check.html", "check.css", "check.js")
    )
    step = resource("anydevice.plan.page", "step.js")
    title = f"{report.program} – check"
    return page(title, body, data=data, styles=[style], scripts=[step, script])


def _card(report: Report, gpu: str) -> dict[str, Any]:
    return {
        "gpu": gpu,
        "name": card(gpu).name,
        "now": report.step.get(gpu),
        "fixed": report.fixed.get(gpu),
        "step": report.timelines.get(gpu),
    }


def _finding(one: Finding) -> dict[str, Any]:
    first = max(1, one.site.line - AROUND)
    numbers = range(first, one.site.line + AROUND + 1) if one.site.line else range(0)
    lines = [(number, linecache.getline(one.site.file, number)) for number in numbers]
    return {**one.to_dict(), "place": str(one.site), "source": [one for one in lines if one[1]]}
