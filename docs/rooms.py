"""Draws docs/pictures/rooms-*.svg: the rooms of CONTRIBUTING.md, in its order, with their folders.

python docs/rooms.py
"""

import re
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
PACKAGE = ROOT / "src" / "anydevice"
WIDTH, LEFT, LINE, GAP = 860, 20, 21, 10

# The background of a row, its border, names, text, and the background of a folder.
SHADES = {
    "light": ("#f6f8fa", "#d1d9e0", "#0969da", "#1f2328", "#ddf4ff"),
    "dark": ("#161b22", "#3d444d", "#58a6ff", "#e6edf3", "#1f3350"),
}
STYLE = "font-family: system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


def rows() -> list[tuple[list[str], str]]:
    """Each row's rooms and what they are for, from the top; the list of CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    block = next(each for each in text.split("\n\n") if each.startswith("    cli"))
    joined = re.sub(r"\n {6,}", "  ", block)
    parts = (re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in joined.splitlines())
    return [(names.split(", "), _short(purpose)) for names, purpose in parts]


def _short(purpose: str) -> str:
    """A purpose on one line; of a longer one, what stands before the colon."""
    line = re.sub(r"\s+", " ", purpose.replace("`", ""))
    return line if len(line) < 110 else line.partition(":")[0]


def folders(room: str) -> list[str]:
    """The folders inside a room."""
    found = [path.name for path in (PACKAGE / room).glob("*/") if path.is_dir()]
    return sorted(name for name in found if not name.startswith(("_", ".")))


def drawn(shade: str) -> str:
    """The picture as SVG."""
    back, border, blue, ink, chip = SHADES[shade]
    parts, y = [], GAP
    for names, purpose in rows():
        inside = [name for room in names for name in folders(room)]
        height = 2 * LINE + 12 + (LINE + 4) * bool(inside)
        parts.append(
            f'<rect x="{LEFT}" y="{y}" width="{WIDTH - 2 * LEFT}" height="{height}" rx="8" '
            f'fill="{back}" stroke="{border}"/>'
            f'<text x="{LEFT + 14}" y="{y + LINE + 2}" fill="{blue}" font-weight="600" '
            f'font-size="15">{escape(" · ".join(names))}</text>'
            f'<text x="{LEFT + 14}" y="{y + 2 * LINE + 1}" fill="{ink}" font-size="13">'
            f"{escape(purpose)}</text>"
        )
        x = LEFT + 14
        for name in inside:
            width = 8 * len(name) + 16
            top = y + 2 * LINE + 9
            parts.append(
                f'<rect x="{x}" y="{top}" width="{width}" height="{LINE}" rx="10" fill="{chip}"/>'
                f'<text x="{x + width / 2}" y="{top + 15}" fill="{ink}" font-size="12" '
                f'text-anchor="middle">{escape(name)}</text>'
            )
            x += width + 8
        y += height + GAP
    note = "A room imports only from the rooms below it."
    parts.append(f'<text x="{LEFT}" y="{y + 12}" fill="{ink}" font-size="13">{note}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 24}" role="img" '
        f'aria-label="The rooms of anydevice from the top to the ground" style="{STYLE}">'
        f"{''.join(parts)}</svg>\n"
    )


if __name__ == "__main__":
    for name in SHADES:
        path = FOLDER / f"rooms-{name}.svg"
        path.write_text(drawn(name), "utf-8")
        print(path.relative_to(ROOT))
