"""A sweep as one HTML page that stands alone, and its main picture as a PNG."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from anydevice.files import write_whole
from anydevice.pages.frame import page, resource
from anydevice.pages.picture import take_picture
from anydevice.sweep.page.data import page_data
from anydevice.sweep.records.claims import is_claimed
from anydevice.sweep.records.records import Record, Sheet, SheetError, read_all, read_sheet
from anydevice.version import __version__

PAGE = "report.html"
PICTURE = (1200, 530)
SCRIPTS = ("runs.js", "table.js", "curves.js", "spread.js", "parallel.js", "words.js", "main.js")


def report(folder: str | Path, output: str | Path | None = None) -> Path:
    """Writes the page, FOLDER/report.html unless another place is named, and says where it is."""
    path = Path(output) if output else Path(folder) / PAGE
    content = report_page(Path(folder))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    except OSError as error:
        why = error.strerror or error
        raise OSError(f"{path} could not be written ({why}): name another place.") from error
    return path


def report_picture(folder: str | Path, output: str | Path) -> Path:
    """Writes the curves and durations as a PNG, with a Chromium that is there."""
    take_picture(report_page(Path(folder)), Path(output), PICTURE, "picture")
    return Path(output)


def report_page(folder: Path) -> bytes:
    """The page as bytes of UTF-8; damaged records are named on it, and the rest is shown."""
    records, damaged = read_all(folder)
    records = [_told(folder, record) for record in records]
    try:
        sheet: Sheet | None = read_sheet(folder)
    except SheetError:  # named among the damaged
        sheet = None
    words = {
        "title": folder.resolve().name or str(folder),
        "made": f"{datetime.now():%Y-%m-%d %H:%M}",
        "version": __version__,
    }
    return page_of({**page_data(records, damaged, sheet), **words})


def page_of(data: dict[str, Any]) -> bytes:
    """The page of what `page_data` gives, with a title, when it was made, and by which version."""
    body, style, *scripts = (
        resource("anydevice.sweep.page", name) for name in (PAGE, "report.css", *SCRIPTS)
    )
    return page(f"{data['title']} – anydevice", body, data=data, styles=[style], scripts=scripts)


def _told(folder: Path, record: Record) -> Record:
    """As it stands: a run that nobody works at any more was interrupted."""
    interrupted = record.state == "running" and not is_claimed(folder, record.key)
    return replace(record, state="interrupted") if interrupted else record
