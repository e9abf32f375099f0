"""Predicted against measured, as a picture for docs/: logarithmic, with ranges."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .compare import Compared

THEMES = {
    "light": ("#1f2328", "#6e7781", "#d0d7de", ("#0969da", "#bc4c00", "#1a7f37", "#8250df")),
    "dark": ("#e6edf3", "#8b949e", "#30363d", ("#58a6ff", "#f0883e", "#3fb950", "#bc8cff")),
}
WIDTH, HEIGHT = 640, 560
LEFT, RIGHT, TOP, BOTTOM = 76, 616, 52, 500
BAND = 1.1  # drawn beside the diagonal


def scatter(
    groups: dict[str, Sequence[Compared]],
    theme: str,
    title: str,
    text: Callable[[float], str],
    ticks: Sequence[float],
) -> str:
    """An SVG with one colour for each group; `text` writes a tick."""
    ink, soft, grid, hues = THEMES[theme]
    rows = [row for some in groups.values() for row in some]
    figures = [f for row in rows for f in (row.record.measured, float(row.predicted), row.low)]
    figures = [figure for figure in (*figures, *(row.high for row in rows)) if figure]
    ends = math.log(min(figures) / 1.25), math.log(max(figures) * 1.25)

    def x(figure: float) -> float:
        return LEFT + (math.log(figure) - ends[0]) / (ends[1] - ends[0]) * (RIGHT - LEFT)

    def y(figure: float) -> float:
        return BOTTOM - (math.log(figure) - ends[0]) / (ends[1] - ends[0]) * (BOTTOM - TOP)

    low, high = map(math.exp, ends)
    parts = [_head(title, ink, soft)]
    for tick in (tick for tick in ticks if low < tick < high):
        parts += [
            _line(x(tick), TOP, x(tick), BOTTOM, grid),
            _line(LEFT, y(tick), RIGHT, y(tick), grid),
            _text(x(tick), BOTTOM + 20, text(tick), soft, "middle"),
            _text(LEFT - 10, y(tick) + 4, text(tick), soft, "end"),
        ]
    corners = [(low, low * BAND), (high / BAND, high), (high, high / BAND), (low * BAND, low)]
    band = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in corners)
    parts.append(f'<polygon points="{band}" fill="{soft}" opacity=".16"/>')
    parts.append(_line(LEFT, BOTTOM, RIGHT, TOP, soft))
    for hue, (name, some) in zip(hues, groups.items(), strict=False):
        for row in some:
            parts += _point(row, x(row.record.measured), y, hue, name, text)
    parts += _legend(groups, hues, ink)
    parts.append(_text((LEFT + RIGHT) / 2, HEIGHT - 14, "measured", ink, "middle"))
    turned = f'transform="rotate(-90 18 {(TOP + BOTTOM) / 2})"'
    parts.append(_text(18, (TOP + BOTTOM) / 2, "predicted", ink, "middle", turned))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _head(title: str, ink: str, soft: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{title}" font-family="system-ui, sans-serif" font-size="12">\n'
        + _text(LEFT, 22, title, ink, "start", 'font-size="15" font-weight="600"')
        + "\n"
        + _text(RIGHT, 22, "band: ±10 %", soft, "end")
    )


def _point(
    row: Compared,
    at: float,
    y: Callable[[float], float],
    hue: str,
    name: str,
    text: Callable[[float], str],
) -> list[str]:
    height = y(float(row.predicted))
    drawn = [_line(at, y(row.low), at, y(row.high), hue, 'opacity=".45"')] if row.low else []
    fill = hue if row.record.seen else "none"  # hollow: predicted before it was seen
    says = f"{row.record.id}, {name}: measured {text(row.record.measured)}, predicted "
    says += text(float(row.predicted))
    drawn.append(
        f'<circle cx="{at:.1f}" cy="{height:.1f}" r="4" fill="{fill}" fill-opacity=".8" '
        f'stroke="{hue}" stroke-width="1.5"><title>{says}</title></circle>'
    )
    return drawn


def _legend(groups: dict[str, Sequence[Compared]], hues: Sequence[str], ink: str) -> list[str]:
    drawn = []
    for index, (hue, name) in enumerate(zip(hues, groups, strict=False)):
        at = TOP + 18 + 20 * index
        drawn.append(f'<circle cx="{LEFT + 18}" cy="{at - 4}" r="5" fill="{hue}"/>')
        drawn.append(_text(LEFT + 30, at, name, ink, "start"))
    return drawn


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" {more}/>'


def _text(x: float, y: float, says: str, colour: str, anchor: str, more: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" {more}>{says}</text>'
    )
