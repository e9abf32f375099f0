"""The report: one HTML page with the figures, which needs no network."""

from html import escape
from pathlib import Path
from string import Template

from anydevice.bench.findings import SHORT, Figure, Findings
from anydevice.bench.units import number_text
from anydevice.errors import UsageError
from anydevice.files import write_whole
from anydevice.version import __version__

PAGE = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>CPU against GPU</title>
<style>
:root { color-scheme: light dark }
:root { --bar: light-dark(#2563eb, #60a5fa); --dim: light-dark(#555, #aaa) }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
section { overflow-x: auto; margin: 2rem 0 }
table { font-variant-numeric: tabular-nums; margin: .5rem 0 }
caption { text-align: left; font-weight: 600; padding: .5rem 10px }
thead th { border-bottom: 1px solid currentColor; font-weight: 600 }
tbody tr:hover { background: color-mix(in srgb, var(--bar) 15%, transparent) }
svg { display: block; width: 100%; max-width: 48rem }
svg text { fill: currentColor; font-size: 12px }
svg rect { fill: var(--bar) } svg .virtual rect { fill: var(--dim) }
p { color: var(--dim); margin: .3rem 0 }
</style>
</head>
<body>
<h1>CPU against GPU</h1>
$notes
$sections
<p>anydevice $version</p>
</body>
</html>
""")
LINE, LEFT, WIDE = 22, 230, 720


def check_page(path: Path) -> Path:
    """The path, if a page can be written there: better known before a minute of measuring."""
    if path.is_dir() or not path.parent.is_dir():
        got = "a folder" if path.is_dir() else "one in a folder that is not there"
        raise UsageError(f"expected a file to write the report to, got {got}: {path}.")
    return path


def write_page(path: Path, findings: Findings) -> None:
    """Writes the report; its bars are the rates of each kind of work."""
    sections = []
    for table in findings.tables():
        figures = [figure for figure in findings.figures if figure.kind == table.columns[0]]
        unit = "GFLOP/s" if figures[0].computes else "GB/s"
        sections.append(f"<section>{_bars(figures, unit)}{table.html()}</section>")
    page = PAGE.substitute(
        notes="".join(f"<p>{escape(line)}</p>" for line in findings.notes()),
        sections="".join(sections)
        + "".join(f"<p>Left out: {escape(line)}</p>" for line in findings.gaps()),
        version=__version__,
    )
    write_whole(path, page.encode())


def _bars(figures: list[Figure], unit: str) -> str:
    """A bar for each figure's rate, as long as it is fast."""
    fastest = max(figure.rate for figure in figures)
    room = WIDE - LEFT - 80
    lines = []
    for row, figure in enumerate(figures):
        label = " ".join((figure.what, SHORT.get(figure.dtype, figure.dtype), figure.device))
        wide, y = max(1.0, figure.rate / fastest * room), row * LINE
        mark = ' class="virtual"' if figure.virtual else ""
        not_one = " (not a GPU's speed)" if figure.virtual else ""
        lines.append(
            f'<g{mark}><text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>'
            f'<rect x="{LEFT}" y="{y + 4}" width="{wide:.1f}" height="{LINE - 8}" rx="2">'
            f"<title>{escape(label)}: {number_text(figure.rate / 1e9)} {unit}{not_one}</title>"
            f'</rect><text x="{LEFT + wide + 6:.1f}" y="{y + 15}">'
            f"{number_text(figure.rate / 1e9)}</text></g>"
        )
    size = f"0 0 {WIDE} {len(figures) * LINE}"
    return f'<svg viewBox="{size}" role="img" aria-label="{unit}">{"".join(lines)}</svg>'
