"""A cluster's plan as one self-contained HTML page: a timeline and the memory of each role."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from anydevice.files import write_whole
from anydevice.pages.frame import page
from anydevice.plan.cluster.answer import ClusterPlan, ClusterVerdict, Role
from anydevice.plan.cluster.together import Span
from anydevice.plan.page.timeline import timeline
from anydevice.text import duration_text, size_text
from anydevice.version import __version__

WIDTH, LANE, LABEL, HEIGHT = 960, 22, 190, 150
STYLE = """
main { margin-top: 2rem; }
section + section { margin-top: 3rem; }
figure { margin: 1rem 0 2rem; overflow-x: auto; }
figcaption { color: var(--muted); margin-bottom: .4rem; }
svg text { fill: var(--text); font-size: 12px; }
.lane { fill: var(--grid); opacity: .45; }
.computing { fill: var(--c0); }
.collective { fill: var(--c1); }
.waiting { fill: var(--bad); }
.held { fill: var(--c0); opacity: .55; }
.full { stroke: var(--bad); stroke-dasharray: 6 4; }
td.figure, th.figure { text-align: right; }
"""


def write_report(plan: ClusterPlan, path: str | Path) -> Path:
    """Writes the page and returns its path."""
    write_whole(Path(path), report_page(plan))
    return Path(path)


def report_page(plan: ClusterPlan) -> bytes:
    """The page as bytes of UTF-8."""
    sections = "".join(_section(verdict) for verdict in plan.verdicts)
    made = f"{datetime.now():%Y-%m-%d %H:%M}, anydevice {__version__}"
    body = (
        "<header><p class='over'>Predicted on hollow GPUs: nothing ran on a real one</p>"
        f"<h1>{escape(plan.program)}</h1></header><main>{sections}</main>"
        f"<footer class='note'>{made}</footer>"
    )
    return page(f"{plan.program} – plan of a cluster", body, styles=[STYLE])


def _section(verdict: ClusterVerdict) -> str:
    parts = [f"<h2>{escape(f'{verdict.world}, {verdict.gpu}')}</h2>"]
    parts += [f"<p>{escape(line)}</p>" for line in verdict.sentences()]
    parts.append(_roles(verdict.roles))
    if time := verdict.time:
        end = max((span.end for spans in time.spans.values() for span in spans), default=0.0)
        slowest = max(time.busy, key=lambda rank: time.busy[rank])
        for role in verdict.roles:
            slow = ", which computes longest" if role.rank == slowest and len(time.busy) > 1 else ""
            title = f"A step of {role.title}{slow}: {duration_text(time.seconds)}"
            parts.append(_figure(title, _lanes(time.spans.get(role.rank, []), end)))
        rows = [
            (each.name, each.ranks, each.nodes, each.count, size_text(each.bytes), each.way)
            for each in time.collectives
        ]
        heads = ("collective", "ranks", "nodes", "times", "bytes", "by")
        parts.append(_table(heads, rows))
    parts += [_figure(f"Memory of {role.title}", _memory(role)) for role in verdict.roles]
    return f"<section>{''.join(parts)}</section>"


def _roles(roles: Iterable[Role]) -> str:
    rows = []
    for role in roles:
        run = role.run
        sizes = (run.tensors, run.allocated, run.reserved, run.device_bytes)
        rows.append((role.title, run.verdict, *map(size_text, sizes)))
    return _table(("role", "fits", "tensors", "allocated", "reserved", "device"), rows)


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    def cells(kind: str, row: Sequence[Any]) -> str:
        return "".join(
            f"<{kind}{' class=figure' if place else ''}>{escape(str(cell))}</{kind}>"
            for place, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{cells('th', heads)}</tr></thead>"
    return f"<div class=scroll><table>{head}<tbody>{body}</tbody></table></div>"


def _figure(title: str, drawing: str) -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption>{drawing}</figure>"


def _lanes(spans: Sequence[Span], end: float) -> str:
    """A lane for what computes, and one for each group's collectives."""
    names = list(dict.fromkeys(span.lane for span in spans))
    names.sort(key=lambda name: name != "computing")
    drawn = []
    for place, name in enumerate(names):
        top = place * (LANE + 6)
        drawn.append(f"<text x='0' y='{top + 15}'>{escape(name)}</text>")
        drawn.append(_box(LABEL, top, WIDTH, "lane"))
        kind = "computing" if name == "computing" else "collective"
        for begin, stop in _joined([s for s in spans if s.lane == name], end):
            drawn.append(_box(LABEL + begin, top, max(0.5, stop - begin), kind))
    return _svg(len(names) * (LANE + 6), "".join(drawn), "timeline")


def _joined(spans: Sequence[Span], end: float) -> Iterable[tuple[float, float]]:
    """The spans in pixels; what lies closer than half of one is drawn as one."""
    scale = WIDTH / end if end else 0.0
    now: list[float] | None = None
    for span in sorted(spans, key=lambda span: span.begin):
        begin, stop = span.begin * scale, span.end * scale
        if now and begin - now[1] < 0.5:
            now[1] = max(now[1], stop)
            continue
        if now:
            yield now[0], now[1]
        now = [begin, stop]
    if now:
        yield now[0], now[1]


def _memory(role: Role) -> str:
    """The bytes that are held, event by event, under the line of what the GPU has."""
    run = role.run
    line = timeline(run.blocks, run.device)
    small = run.reserved < run.card.memory / 4  # then the GPU's own size is left out of the picture
    most = 1.2 * run.allocated if small else max(run.card.memory, run.reserved)
    points = [(0.0, float(HEIGHT))]
    for event, held in zip(line["events"], line["bytes"], strict=True):
        points.append((WIDTH * event / max(1, line["last"]), HEIGHT * (1 - sum(held) / most)))
    points.append((float(WIDTH), float(HEIGHT)))
    path = " ".join(f"{LABEL + x:.1f},{y:.1f}" for x, y in points)
    drawn = (
        f"<polygon class='held' points='{path}'/>"
        f"<text x='0' y='{HEIGHT - 4}'>{size_text(run.allocated)} at the peak</text>"
    )
    if not small:
        full = HEIGHT * (1 - run.card.memory / most) + 1
        ends = f"x1='{LABEL}' x2='{LABEL + WIDTH}' y1='{full:.1f}' y2='{full:.1f}'"
        drawn += f"<line class='full' {ends}/>"
        drawn += f"<text x='0' y='{full + 11:.0f}'>{size_text(run.card.memory)} of the GPU</text>"
    return _svg(HEIGHT, drawn, "memory")


def _box(x: float, y: float, width: float, kind: str) -> str:
    return f"<rect class='{kind}' x='{x:.1f}' y='{y}' width='{width:.1f}' height='{LANE}'/>"


def _svg(height: int, drawn: str, name: str) -> str:
    size = f"width='{LABEL + WIDTH}' height='{height}'"
    return f"<svg role='img' aria-label='{name}' {size}>{drawn}</svg>"
