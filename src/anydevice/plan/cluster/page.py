"""A cluster's plan as one self-contained HTML page: a timeline and the memory of each role."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from anydevice.files import write_named
from anydevice.pages.frame import page
from anydevice.plan.cluster.answer import ClusterPlan, ClusterVerdict, Role
from anydevice.plan.cluster.timing import Collective
from anydevice.plan.cluster.together import Span
from anydevice.plan.page.timeline import timeline
from anydevice.text import UNSET, duration_text, size_text
from anydevice.version import __version__

WIDTH, LANE, HEIGHT = 960, 22, 150  # of drawings, which then take the width that there is
STYLE = """
main { margin-top: 2rem; }
section + section { margin-top: 3rem; }
h2 { margin-bottom: .6rem; }
section > p { margin-bottom: .35rem; }
section > .scroll { margin-top: 1rem; }
figure { margin: 1.5rem 0 2rem; }
figcaption { color: var(--muted); margin-bottom: .5rem; }
.row { display: grid; grid-template-columns: 11rem 1fr; gap: .75rem; margin-bottom: .4rem; }
.label { display: flex; flex-direction: column; justify-content: space-between; font-size: .8rem; }
.row rect.lane { fill: var(--grid); opacity: .45; }
.computing { fill: var(--c0); }
.collective { fill: var(--c1); }
.held { fill: var(--c0); opacity: .55; }
.full { stroke: var(--bad); stroke-dasharray: 6 4; vector-effect: non-scaling-stroke; }
td, th { white-space: nowrap; }
td.figure, th.figure { text-align: right; }
@media (max-width: 40rem) {
  .row { grid-template-columns: 1fr; gap: .15rem; margin-bottom: .6rem; }
  .label { flex-direction: row; flex-wrap: wrap; gap: 0 1rem; }
}
"""


def write_report(plan: ClusterPlan, path: str | Path) -> Path:
    """Writes the page and returns its path."""
    write_named(Path(path), report_page(plan))
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
        heads = ("collective", "ranks", "nodes", "times", "bytes", "time", "by")
        parts.append(_table(heads, map(_collective, time.collectives)))
    parts += [_figure(f"Memory of {role.title}", _memory(role)) for role in verdict.roles]
    return f"<section>{''.join(parts)}</section>"


def _roles(roles: Iterable[Role]) -> str:
    rows = []
    for role in roles:
        run = role.run
        sizes = (run.tensors, run.allocated, run.reserved, run.device_bytes)
        rows.append((role.title, run.verdict, *map(size_text, sizes)))
    return _table(("role", "fits", "tensors", "allocated", "reserved", "device"), rows)


def _collective(each: Collective) -> Sequence[Any]:
    spent = duration_text(each.seconds) if each.seconds else UNSET
    return each.name, each.ranks, each.nodes, each.count, size_text(each.bytes), spent, each.way


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
    rows = []
    for name in names:
        kind = "computing" if name == "computing" else "collective"
        drawn = _box(0, WIDTH, "lane")
        for begin, stop in _joined([s for s in spans if s.lane == name], end):
            drawn += _box(begin, max(0.5, stop - begin), kind)
        rows.append(_row([name], LANE, drawn, name))
    return "".join(rows)


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
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    drawn = f"<polygon class='held' points='{path}'/>"
    labels = [f"{size_text(run.allocated)} at the peak"]
    if not small:
        full = HEIGHT * (1 - run.card.memory / most) + 1
        drawn += f"<line class='full' x1='0' x2='{WIDTH}' y1='{full:.1f}' y2='{full:.1f}'/>"
        labels.insert(0, f"{size_text(run.card.memory)} of the GPU")
    return _row(labels, HEIGHT, drawn, f"{labels[-1]}, over {line['last']:,} events")


def _box(x: float, width: float, kind: str) -> str:
    return f"<rect class='{kind}' x='{x:.1f}' width='{width:.1f}' height='{LANE}'/>"


def _row(labels: Sequence[str], height: int, drawn: str, says: str) -> str:
    """A picture as wide as the page, and what it is: to its left or, on a telephone, above it."""
    named = "".join(f"<span>{escape(label)}</span>" for label in labels)
    size = f"height='{height}' viewBox='0 0 {WIDTH} {height}' preserveAspectRatio='none'"
    picture = f"<svg role='img' aria-label='{escape(says)}' {size}>{drawn}</svg>"
    return f"<div class='row'><div class='label'>{named}</div>{picture}</div>"
