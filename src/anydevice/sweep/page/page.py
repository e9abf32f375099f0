"""A sweep as one self-contained HTML page, and its main picture as a PNG."""

from dataclasses import replace
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from anydevice.files import write_named
from anydevice.pages.frame import page, resource
from anydevice.pages.picture import take_picture
from anydevice.sweep.page.data import page_data
from anydevice.sweep.records.claims import is_claimed
from anydevice.sweep.records.records import Record, Sheet, SheetError, read_all, read_sheet
from anydevice.version import __version__

PAGE = "report.html"
PICTURE = (1200, 530)
SCRIPTS = (
    "runs.js",
    "table.js",
    "curves.js",
    "spread.js",
    "parallel.js",
    "groups.js",
    "classes.js",
    "summary.js",
    "main.js",
)


class Report(type(Path())):  # type: ignore[misc]
    """The path of a report, which a notebook shows as the page itself."""

    def _repr_html_(self) -> str:
        content = escape(self.read_text("utf-8"))
        style = "width:100%; height:720px; border:1px solid #8884; border-radius:6px"
        return f'<iframe srcdoc="{content}" style="{style}" title="{escape(self.name)}"></iframe>'


def report(folder: str | Path, output: str | Path | None = None) -> Report:
    """Writes the report of a sweep: one HTML page that needs no network.

    Args:
        folder: The folder of a sweep; it may still be at work.
        output: The file to write. Default: report.html in the folder.

    Returns:
        The path of the page; a notebook shows the page itself.

    Raises:
        UsageError: If the folder is not that of a sweep.
        OSError: If the page cannot be written.

    Example:
        >>> import anydevice as ad
        >>> sweep = ad.Sweep(None, ad.grid(lr=[0.1]))
        >>> with sweep.track(sweep.runs[0], "runs/reported") as t:
        ...     t.epoch(loss=0.5)
        >>> print(report("runs/reported"))
        runs/reported/report.html
    """
    path = Report(output) if output else Report(folder) / PAGE
    content = report_page(Path(folder))
    write_named(path, content, folder=True)
    return path


def report_picture(folder: str | Path, output: str | Path) -> Path:
    """Writes the curves and durations as a PNG; this needs a Chromium on the machine."""
    take_picture(report_page(Path(folder)), Path(output), PICTURE, "picture")
    return Path(output)


def report_page(folder: Path) -> bytes:
    """The page as UTF-8; it names damaged records and shows the others."""
    records, damaged = read_all(folder)
    records = [_state_now(folder, record) for record in records]
    try:
        sheet: Sheet | None = read_sheet(folder)
    except SheetError:  # named among the damaged
        sheet = None
    about = {
        "title": folder.resolve().name or str(folder),
        "made": f"{datetime.now():%Y-%m-%d %H:%M}",
        "version": __version__,
    }
    return page_of({**page_data(records, damaged, sheet), **about})


def page_of(data: dict[str, Any]) -> bytes:
    """The page of what `page_data` gives, with a title, when it was made, and by which version."""
    body, style, *scripts = (
        resource("anydevice.sweep.page", name) for name in (PAGE, "report.css", *SCRIPTS)
    )
    return page(f"{data['title']} – anydevice", body, data=data, styles=[style], scripts=scripts)


def _state_now(folder: Path, record: Record) -> Record:
    """The record; a run that is not finished and that no process has was interrupted."""
    interrupted = record.state == "running" and not is_claimed(folder, record.key)
    return replace(record, state="interrupted") if interrupted else record
