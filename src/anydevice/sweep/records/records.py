"""The records of a sweep on disk: a folder for each run, with a JSON file that is always whole.

FOLDER/sweep.json names the sweep; FOLDER/runs/<key>/record.json is one run, as far as it got.
"""

import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from anydevice.errors import UsageError
from anydevice.files import locked, write_whole
from anydevice.sweep.jsonable import is_number, lenient, strict
from anydevice.train.history import is_health

SWEEP_FORMAT, RUN_FORMAT = "anydevice sweep 2", "anydevice run 2"
UNCHECKED = {SWEEP_FORMAT: "anydevice sweep 1", RUN_FORMAT: "anydevice run 1"}  # before checksums
HEAD = b'{"checksum": "%08x", '  # the CRC-32 of everything else, with its brace
SWEEP, RUNS, RECORD, LOCK = "sweep.json", "runs", "record.json", "lock"
STATES = ("running", "done", "failed", "stopped")


class RecordError(OSError):
    """A record could not be written; the text says which, and that those before it are intact."""


@dataclass(frozen=True)
class Record:
    """One run: its parameters, every epoch's figures, how it ended, and on what it ran.

    `state` is "running" (interrupted, if no process holds its lock), "done", "failed" (then
    `error` is the traceback) or "stopped" (early, by halving).
    """

    key: str
    parameters: dict[str, Any]
    state: str = "running"
    error: str | None = None
    epochs: list[dict[str, Any]] = field(default_factory=list)
    started: str = ""
    seconds: float | None = None
    device: str | None = None
    device_name: str | None = None
    virtual: bool = False
    peak_bytes: int | None = None
    seed: int | None = None
    git: dict[str, Any] | None = None
    versions: dict[str, Any] = field(default_factory=dict)
    host: str | None = None

    @property
    def finished(self) -> bool:
        """Whether the run has ended, well or not."""
        return self.state != "running"

    @property
    def last(self) -> dict[str, Any]:
        """The last epoch's figures; empty before the first."""
        return self.epochs[-1] if self.epochs else {}

    @property
    def reason(self) -> str:
        """Why it failed: the last line of a traceback, or the first line of a crash."""
        lines = [line for line in (self.error or "").splitlines() if line.strip()]
        if not lines:
            return "no reason is known"
        if not lines[0].startswith("Traceback"):
            return lines[0]
        return [line for line in lines if not line.startswith((" ", "\t"))][-1]


def figures_in(epoch: Mapping[str, Any]) -> list[str]:
    """The names of what was measured in an epoch, without its number and its speed."""
    others = (name for name in epoch if not (name in ("epoch", "skipped") or is_health(name)))
    return [name for name in others if is_number(epoch[name])]


@dataclass(frozen=True)
class Damaged:
    """A record that cannot be read, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path} is damaged ({self.reason}); it stays as it is."


@dataclass(frozen=True)
class Sheet:
    """What sweep.json says: the parameters and the runs in their orders, and the experiment."""

    parameters: list[str] = field(default_factory=list)
    experiment: str | None = None
    runs: list[str] = field(default_factory=list)


NAMES = {each.name for each in fields(Record)}
NEEDED = ("key", "parameters", "state", "epochs")
TYPES: dict[str, Any] = {
    **dict.fromkeys(("key", "state", "started"), str),
    **dict.fromkeys(("error", "device", "device_name", "host"), str | None),
    **dict.fromkeys(("parameters", "versions"), dict),
    **dict.fromkeys(("peak_bytes", "seed"), int | None),
    "epochs": list,
    "seconds": float | int | None,
    "virtual": bool,
    "git": dict | None,
}
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def folder_of(folder: Path, key: str) -> Path:
    """Where a run has its record, its output, and what its experiment puts there."""
    return folder / RUNS / key


def write(folder: Path, record: Record) -> None:
    """Puts the record on the disk, over an earlier state of the same run."""
    path = folder_of(folder, record.key) / RECORD
    _write(path, {"format": RUN_FORMAT, **vars(record)})


def read(folder: Path, key: str) -> Record | Damaged | None:
    """The record of one run; None if there is none."""
    path = os.path.join(folder, RUNS, key, RECORD)  # thousands of them: Path would take longer
    try:
        with open(path, "rb") as file:
            text = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        return Damaged(Path(path), str(error))
    return _record(path, key, text)


def is_to_do(record: Record | Damaged | None, retry_failed: bool) -> bool:
    """Whether a run with this record is to be done: it has none, was interrupted, or failed."""
    if not isinstance(record, Record):
        return record is None
    return not record.finished or (record.state == "failed" and retry_failed)


def read_all(folder: str | Path) -> tuple[list[Record], list[Damaged]]:
    """Every run of a sweep in the sweep's order, and the files that cannot be read."""
    folder = Path(folder)
    damaged = []
    try:
        order = {key: place for place, key in enumerate(read_sheet(folder).runs)}
    except SheetError as error:
        order = {}
        damaged.append(Damaged(folder / SWEEP, error.reason))
    found = [read(folder, key) for key in _keys(folder)]
    damaged += [each for each in found if isinstance(each, Damaged)]
    records = [each for each in found if isinstance(each, Record)]
    records.sort(key=lambda record: (order.get(record.key, len(order)), record.started, record.key))
    return records, damaged


class SheetError(UsageError):
    """sweep.json cannot be read."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"expected {path} as it was written, got a damaged one ({reason}).")
        self.reason = reason


def read_sheet(folder: Path) -> Sheet:
    """The sweep of a folder; a UsageError if it has none."""
    path = folder / SWEEP
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        what = "which is a file" if folder.is_file() else "which does not exist"
        what = "which has no sweep.json" if folder.is_dir() else what
        raise UsageError(f"expected the folder of a sweep, got {folder}, {what}.") from error
    except OSError as error:
        raise SheetError(path, str(error)) from error
    try:
        entry = _checked(text, SWEEP_FORMAT)
        return _sheet(entry["parameters"], entry["experiment"], entry.get("runs", []))
    except MALFORMED as error:
        raise SheetError(path, _why(error)) from error


def enter(folder: Path, sheet: Sheet) -> Sheet:
    """Makes the folder this sweep's, or joins it; a UsageError if it has another sweep's runs."""
    refuse_file(folder)
    with disk_errors(folder):
        (folder / RUNS).mkdir(parents=True, exist_ok=True)
        with locked(folder / LOCK):
            there = read_sheet(folder) if (folder / SWEEP).exists() else None
            if there is None and next(_keys(folder), None):
                raise UsageError(f"expected {SWEEP} next to the runs in {folder}, got none.")
            together = _joined(folder, there, sheet) if there else sheet
            if together != there:
                _write(folder / SWEEP, {"format": SWEEP_FORMAT, **vars(together)})
    return together


def refuse_file(folder: Path) -> None:
    """Refuses a file where a folder for records is needed."""
    if folder.is_file():
        raise UsageError(f"expected a folder for the records, got {folder}, which is a file.")


def _joined(folder: Path, there: Sheet, sheet: Sheet) -> Sheet:
    for what, theirs, ours in (
        ("experiment", there.experiment, sheet.experiment),
        ("parameters", ", ".join(there.parameters), ", ".join(sheet.parameters)),
    ):
        if theirs != ours and None not in (theirs, ours):
            raise UsageError(
                f"expected the folder of this sweep, got {folder}, which has the runs of another: "
                f"its {what} {_be(what)} {theirs}, not {ours}. Name another folder."
            )
    runs = list(dict.fromkeys([*there.runs, *sheet.runs]))
    return Sheet(there.parameters, there.experiment or sheet.experiment, runs)


def _be(what: str) -> str:
    return "are" if what.endswith("s") else "is"


def _keys(folder: Path) -> Iterator[str]:
    with os.scandir(folder / RUNS) if (folder / RUNS).is_dir() else _nothing() as entries:
        for entry in entries:
            if not entry.name.startswith(".") and entry.is_dir():
                yield entry.name


@contextmanager
def _nothing() -> Iterator[Sequence[Any]]:
    yield ()


def _record(path: str, key: str, text: bytes) -> Record | Damaged:
    try:
        entry = _checked(text, RUN_FORMAT)
        if missing := [name for name in NEEDED if name not in entry]:
            raise KeyError(missing[0])
        for name, kind in TYPES.items():
            if name in entry and not isinstance(entry[name], kind):
                raise ValueError(f"expected {name} as a {getattr(kind, '__name__', kind)}")
        if entry["state"] not in STATES or not all(isinstance(e, dict) for e in entry["epochs"]):
            raise ValueError("expected a state and epochs of a run")
        if entry["key"] != key:
            raise ValueError(f"it is the record of run {entry['key']}")
    except MALFORMED as error:
        return Damaged(Path(path), _why(error))
    if b"\\ud" in text.lower():  # half of a pair in UTF-16, which nothing can show
        entry = strict(entry)
    if b'"NaN"' in text or b'Infinity"' in text:
        entry["epochs"] = lenient(entry["epochs"])
    return Record(**{name: value for name, value in entry.items() if name in NAMES})


def _sheet(parameters: Any, experiment: Any, runs: Any) -> Sheet:
    names = [*parameters, *runs, *([] if experiment is None else [experiment])]
    if not all(isinstance(name, str) for name in names):
        raise ValueError("expected names")
    return Sheet(strict(list(parameters)), strict(experiment), strict(list(runs)))


def _checked(text: bytes, form: str) -> dict[str, Any]:
    """What a file holds that was written as `_write` does."""
    entry: dict[str, Any] = json.loads(text)
    known, found = entry.pop("checksum", None), entry.pop("format")
    if found not in (form, UNCHECKED[form]):
        raise ValueError(f"expected the format {form!r}, got {found!r}")
    rest = b"{" + text[len(HEAD % 0) :]
    if (known is not None or found == form) and text != HEAD % zlib.crc32(rest) + rest[1:]:
        raise ValueError("its checksum is that of other bytes")
    return entry


def _why(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _write(path: Path, entry: dict[str, Any]) -> None:
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(strict(entry), ensure_ascii=False).encode()
        write_whole(path, HEAD % zlib.crc32(text) + text[1:])


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Makes an error of the disk a sentence that names the file and says that nothing is lost."""
    try:
        yield
    except RecordError:
        raise
    except OSError as error:
        raise RecordError(
            f"{path} could not be written ({error.strerror or error}); the records before it are "
            "intact. Make room or name another folder, and run again."
        ) from error
