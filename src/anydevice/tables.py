"""One table, three faces: rich for a terminal, HTML for a notebook, plain text for the rest."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from io import StringIO

from rich import box
from rich.console import Console, JustifyMethod, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

UNSET = "–"


def size_text(count: int | None) -> str:
    """A size as people say it: `size_text(2**30) == "1.0 GiB"`."""
    if count is None:
        return UNSET
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def show(renderable: RenderableType) -> None:
    """Print to the terminal; where there is none (a pipe, a file), as wide as nothing is cut."""
    terminal = Console()
    if terminal.is_terminal:
        terminal.print(renderable)
    else:
        print(plain_text(renderable, width=1000))


def plain_text(renderable: RenderableType, width: int = 120) -> str:
    """What a terminal of this width would show, without colours."""
    page = StringIO()
    Console(file=page, width=width, color_system=None, force_jupyter=False).print(renderable)
    lines = page.getvalue().splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n")


@dataclass
class Table:
    """Rows of text under named columns; the columns named in `right` are aligned right."""

    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    title: str = ""
    right: Sequence[str] = ()

    def __rich__(self) -> RichTable:
        table = RichTable(title=self.title or None, title_justify="left", box=box.SIMPLE_HEAD)
        for column in self.columns:
            aligned: JustifyMethod = "right" if column in self.right else "left"
            table.add_column(column, justify=aligned, overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(cell) for cell in row))  # Text: user text is never markup
        return table

    def html(self) -> str:
        """The table as HTML, every cell escaped."""

        def line(cells: Sequence[str], tag: str) -> str:
            styles = (
                "text-align:right; white-space:nowrap" if name in self.right else "text-align:left"
                for name in self.columns
            )
            return "".join(
                f'<{tag} style="padding:2px 10px; {style}">{escape(cell)}</{tag}>'
                for style, cell in zip(styles, cells, strict=True)
            )

        caption = f"<caption>{escape(self.title)}</caption>" if self.title else ""
        body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in self.rows)
        head = f"<thead><tr>{line(self.columns, 'th')}</tr></thead>"
        return (
            f'<table style="border-collapse:collapse">{caption}{head}<tbody>{body}</tbody></table>'
        )
