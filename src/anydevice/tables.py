"""One table, three faces: rich for a terminal, HTML for a notebook, plain text for the rest."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from io import StringIO

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, JustifyMethod, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

MANY = 500  # rows of a table


def show(renderable: RenderableType) -> None:
    """Print to the terminal; where there is none (a pipe, a file), as wide as nothing is cut."""
    terminal = Console()
    if terminal.is_terminal:
        terminal.print(renderable)
    else:
        show_text(plain_text(renderable, width=1000))


def show_text(text: str) -> None:
    """Print text; in the nearest characters where the terminal or file is not in Unicode."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        plainer = text.translate(str.maketrans("─–·×", "--|x"))
        text = plainer.encode(encoding, "replace").decode(encoding)
    print(text)


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

    def __rich__(self) -> RenderableType:
        return self._as_lines() if len(self.rows) > MANY else self._as_rich()

    def _as_lines(self) -> Text:
        """The same, plainer, for so many rows that rich would need seconds."""
        rows = [self.columns, *self.rows]
        widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
        aligned = [name in self.right for name in self.columns]
        head, *body = (
            "  ".join(
                " " * (width - cell_len(cell)) + cell if right else set_cell_size(cell, width)
                for cell, width, right in zip(row, widths, aligned, strict=True)
            ).rstrip()
            for row in rows
        )
        rule = "─" * (sum(widths) + 2 * (len(widths) - 1))
        title = [self.title] if self.title else []
        lines = "\n ".join([*title, head, rule, *body])
        return Text(f" {lines}", no_wrap=True, overflow="ignore")

    def _as_rich(self) -> RichTable:
        table = RichTable(
            title=self.title or None,
            title_justify="left",
            box=box.SIMPLE_HEAD,
            collapse_padding=True,
            pad_edge=False,
        )
        for column in self.columns:
            aligned: JustifyMethod = "right" if column in self.right else "left"
            table.add_column(column, justify=aligned, overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(cell) for cell in row))  # Text: user text is never markup
        return table

    def __str__(self) -> str:
        return plain_text(self)

    def _repr_html_(self) -> str:
        return self.html()

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
