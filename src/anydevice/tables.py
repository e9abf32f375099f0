"""One table, three faces: rich for a terminal, HTML for a notebook, plain text elsewhere."""

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from io import StringIO

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.markup import escape as markup_escape
from rich.table import Table as RichTable
from rich.text import Span, Text

MANY = 500  # rows of a table
# Control characters, those that turn the direction of writing, and halves of UTF-16 pairs.
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
FEW = 6  # columns: so few are folded rather than put below each other


def printable(text: str) -> str:
    """Text that cannot steer a terminal: ESC is shown as \\x1b, and the like."""
    return STEERING.sub(lambda found: repr(found[0])[1:-1], text)


def show(renderable: RenderableType) -> None:
    """Print to the terminal; to a pipe or a file, so wide that nothing is cut."""
    terminal = Console()
    if terminal.is_terminal:
        terminal.print(renderable)
    else:
        show_text(plain_text(renderable, width=1000))


def show_text(text: str) -> None:
    """Print text; in similar characters where the terminal or file has no Unicode."""
    text, encoding = printable(text), sys.stdout.encoding or "utf-8"
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


class Shown:
    """Shows itself in a terminal, in a notebook and as text: a class says what, once, in `_shown`.

    A dataclass that is one takes `repr=False`, or its own repr hides this one.
    """

    def _shown(self) -> Iterable["Table | Text | Shown"]:
        """The tables and paragraphs that it consists of."""
        raise NotImplementedError

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._shown()

    def __str__(self) -> str:
        return plain_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<div>{''.join(map(as_html, self._shown()))}</div>"


def as_html(part: "Table | Text | Shown") -> str:
    """A table, or a paragraph with what is bold in it; every text is escaped."""
    if not isinstance(part, Text):
        return part._repr_html_()
    written, end = "", 0
    whole = Span(0, len(part.plain), part.style)
    for span in sorted(each for each in (whole, *part.spans) if "bold" in str(each.style)):
        before, bold = part.plain[end : span.start], part.plain[max(end, span.start) : span.end]
        written += f"{escape(before)}<b>{escape(bold)}</b>"
        end = max(end, span.end)
    written += escape(part.plain[end:])
    return f"<p>{written.replace(chr(10), '<br>')}</p>"


@dataclass
class Table:
    """Rows of text under named columns; the columns named in `right` are aligned right."""

    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    title: str = ""
    right: Sequence[str] = ()

    def __rich__(self) -> RenderableType:
        return self._as_lines() if len(self.rows) > MANY else _Fitting(self)

    def _as_lines(self) -> Text:
        """The same, plainer, for so many rows that rich would need seconds."""
        rows = [[*map(printable, row)] for row in (self.columns, *self.rows)]
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

    def needed(self) -> list[int]:
        """How wide each column must be so that no word and no figure is broken."""
        return [
            max(
                *map(cell_len, name.split() or [""]),
                *(
                    cell_len(part)
                    for cell in cells
                    for part in ([cell] if name in self.right else cell.split())
                ),
                0,
            )
            for name, *cells in zip(self.columns, *self.rows, strict=True)
        ]

    def as_rich(self, shown: Sequence[int], widths: Sequence[int]) -> RichTable:
        """These columns, at least so wide, for a terminal."""
        table = RichTable(
            title=markup_escape(printable(self.title)) or None,
            title_justify="left",
            box=box.SIMPLE_HEAD,
            collapse_padding=True,
            pad_edge=False,
        )
        for place in shown:
            name = self.columns[place]
            aligned: JustifyMethod = "right" if name in self.right else "left"
            head = Text(printable(name))  # Text: what users name is never markup
            table.add_column(head, justify=aligned, overflow="fold", min_width=widths[place])
        for row in self.rows:
            cells = (Text(printable(row[place])) for place in shown)
            table.add_row(*cells)
        return table

    def __str__(self) -> str:
        return plain_text(self)

    __repr__ = __str__

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


@dataclass
class _Fitting:
    """A table in a terminal; columns without room stand below, next to the first column again."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = self.table.needed()
        blocks = [list(range(len(widths)))]
        if len(widths) > FEW:
            blocks = _blocks(widths, options.max_width)
        fits = [_together(block, widths) <= options.max_width for block in blocks]
        for block, fitting in zip(blocks, fits, strict=True):
            yield self.table.as_rich(block, widths if fitting else [1] * len(widths))


def _blocks(widths: Sequence[int], room: int) -> list[list[int]]:
    """The columns' numbers, so many in a block as there is room for, the first one in each."""
    blocks = [[0]]
    for column in range(1, len(widths)):
        if len(blocks[-1]) > 1 and _together([*blocks[-1], column], widths) > room:
            blocks.append([0])
        blocks[-1].append(column)
    return blocks


def _together(block: Sequence[int], widths: Sequence[int]) -> int:
    """How wide these columns are with what is between them."""
    return sum(widths[column] for column in block) + 2 * len(block)
