"""The report: one HTML page with the figures, self-contained."""

from dataclasses import replace
from html import escape
from pathlib import Path

from anydevice.bench.findings import SHORT, Figure, Findings
from anydevice.errors import UsageError
from anydevice.files import write_named
from anydevice.pages.frame import page
from anydevice.tables import Table
from anydevice.text import number_text
from anydevice.version import __version__

TITLE = "CPU against GPU"
STYLE = """
header { margin-bottom: 2rem; }
.bars { display: grid; grid-template-columns: auto 1fr; gap: 0.2rem 0.75rem; margin: 0 0 1.5rem; }
.bars dt { color: var(--muted); font-size: 0.8125rem; text-align: right; }
.bars dd { display: flex; align-items: center; gap: 0.5rem; margin: 0; font-size: 0.8125rem; }
.bars i { flex: none; height: 0.75rem; border-radius: 2px; background: var(--c0); }
.bars .virtual i { background: var(--other); }
footer { margin-top: 2rem; }
footer p { margin-bottom: 0.4rem; }
"""


def check_page(path: Path) -> Path:
    """The path, if a page can be written there; checked before a minute of measuring."""
    if path.is_dir() or not path.parent.is_dir():
        got = "a folder" if path.is_dir() else "one in a folder that does not exist"
        raise UsageError(f"expected a file to write the report to, got {got}: {path}.")
    return path


def write_page(path: Path, findings: Findings) -> None:
    """Writes the report; its bars are the rates of each kind of work."""
    cards = []
    for table in findings.tables():
        figures = [figure for figure in findings.figures if figure.kind == table.columns[0]]
        cards.append(_card(table, figures))
    notes = "".join(f'<p class="lead">{escape(line)}</p>' for line in findings.notes())
    gaps = "".join(f"<p>Left out: {escape(line)}</p>" for line in findings.gaps())
    body = (
        f'<header><h1>{TITLE}</h1>{notes}</header><main class="cards">{"".join(cards)}</main>'
        f'<footer class="note">{gaps}<p>anydevice {__version__}</p></footer>'
    )
    write_named(path, page(TITLE, body, styles=[STYLE]))


def _card(table: Table, figures: list[Figure]) -> str:
    return (
        f'<section class="card"><div class="head"><h2>{escape(table.title)}</h2></div>'
        f'{_bars(figures)}<div class="scroll">{replace(table, title="").html()}</div></section>'
    )


def _bars(figures: list[Figure]) -> str:
    """A bar for each figure, as long as its rate."""
    fastest = max(figure.rate for figure in figures)
    unit = "GFLOP/s" if figures[0].computes else "GB/s"
    lines = []
    for figure in figures:
        label = " ".join((figure.what, SHORT.get(figure.dtype, figure.dtype), figure.device))
        mark = ' class="virtual" title="not a GPU\'s speed"' if figure.virtual else ""
        wide = f"calc((100% - 7rem) * {max(0.002, figure.rate / fastest):.3f})"
        rate = f"{number_text(figure.rate / 1e9)} {unit}"
        lines.append(f'<dt>{escape(label)}</dt><dd{mark}><i style="width: {wide}"></i>{rate}</dd>')
    return f'<dl class="bars">{"".join(lines)}</dl>'
