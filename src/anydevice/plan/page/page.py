"""A plan as one self-contained HTML page: memory over the steps, what holds it, the time."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anydevice.files import write_named
from anydevice.pages.frame import page, resource
from anydevice.plan.hollow.blocks import Block
from anydevice.plan.modules import grouped
from anydevice.plan.page.timeline import timeline
from anydevice.plan.time.spans import step_timeline
from anydevice.version import __version__

if TYPE_CHECKING:
    from anydevice.plan.answer import Plan, Verdict

LARGEST = 12  # blocks, modules and ops are listed


def write_report(plan: Plan, path: str | Path) -> Path:
    """Writes the page and returns its path."""
    write_named(Path(path), report_page(plan))
    return Path(path)


def report_page(plan: Plan) -> bytes:
    """The page as bytes of UTF-8."""
    data = {
        "program": plan.program,
        "cards": [_card(verdict) for verdict in plan.verdicts],
        "made": f"{datetime.now():%Y-%m-%d %H:%M}",
        "version": __version__,
    }
    body, style, *scripts = (
        resource("anydevice.plan.page", name)
        for name in ("plan.html", "plan.css", "memory.js", "step.js", "tables.js", "plan.js")
    )
    return page(f"{plan.program} – plan", body, data=data, styles=[style], scripts=scripts)


def _card(verdict: Verdict) -> dict[str, Any]:
    run = verdict.run
    return {
        "gpu": run.gpu,
        "name": run.card.name,
        "memory": run.card.memory,
        "fits": verdict.fits,
        "verdict": run.verdict,
        "margin": run.margin,
        "steps": run.steps,
        "samples": run.samples,
        "device": run.device_bytes,
        "allocated": run.allocated,
        "context": run.context.value,
        "largest": verdict.largest.batch if verdict.largest else None,
        "marks": run.step_marks,
        "timeline": timeline(run.blocks, run.device),
        "peak": {"event": verdict.peak.event, "bytes": verdict.peak.bytes},
        "holding": list(verdict.holding().items()),
        "modules": _first(grouped(verdict.activations())),
        "blocks": [_block(block) for block in _fullest(verdict.peak.blocks)],
        "time": _time(verdict.time),
        "step": step_timeline(run.work, run.card, gpus=run.gpus).to_dict() if run.work else None,
    }


def _time(time: Any) -> dict[str, Any] | None:
    if time is None:
        return None
    ops = dict(sorted(time.by_op.items(), key=lambda each: -each[1]))
    return {**time.to_dict(), "ops": _first(ops)}


def _first(figures: dict[str, Any]) -> list[tuple[str, Any]]:
    """The largest ones, and the sum of the others."""
    listed = list(figures.items())
    shown, rest = listed[:LARGEST], listed[LARGEST:]
    if rest:
        shown.append((f"{len(rest)} others", sum(figure for _, figure in rest)))
    return shown


def _fullest(blocks: list[Block]) -> list[Block]:
    return sorted(blocks, key=lambda block: -block.bytes)[:LARGEST]


def _block(block: Block) -> dict[str, Any]:
    line = Path(block.where).name if block.where else ""
    return {"bytes": block.bytes, "category": block.category, "module": block.module, "where": line}
