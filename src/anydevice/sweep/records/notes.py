"""Names, tags and notes of runs: a file in the run's folder, next to its record."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from anydevice.errors import UsageError
from anydevice.files import write_whole
from anydevice.sweep.records.records import disk_errors, folder_of

NOTES = "notes.json"
FORMAT = "anydevice notes 1"
LONGEST = 200  # characters of a name or tag


@dataclass(frozen=True)
class Notes:
    """What somebody has said about a run."""

    name: str = ""
    tags: list[str] = field(default_factory=list)
    note: str = ""


def read_notes(folder: Path, key: str) -> Notes:
    """The notes of a run; empty ones if there are none, or they cannot be read."""
    try:
        entry: Any = json.loads((folder_of(folder, key) / NOTES).read_bytes())
        if entry["format"] != FORMAT:
            return Notes()
        name, tags, note = entry["name"], entry["tags"], entry["note"]
        if all(isinstance(text, str) for text in (name, note, *tags)):
            return Notes(name[:LONGEST], [tag[:LONGEST] for tag in tags], note)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return Notes()


def write_notes(folder: Path, key: str, notes: Notes) -> None:
    """Keeps the notes of a run."""
    path = folder_of(folder, key) / NOTES
    for text in (notes.name, *notes.tags):
        if not isinstance(text, str) or len(text) > LONGEST or "\n" in text:
            raise UsageError(
                f"expected a name or a tag of one line and at most {LONGEST} characters, got "
                f"{text!r:.80}."
            )
    with disk_errors(path):
        text = json.dumps({"format": FORMAT, **asdict(notes)}, ensure_ascii=True)
        write_whole(path, text.encode())
