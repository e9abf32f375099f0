"""The manifest of a checkpoint: each of its files with size and checksum, written last.

The checksum is zlib's CRC-32. It finds every flipped bit and all but one in four billion of other
damages, at several times the speed of a cryptographic hash. It does not stop somebody who changes
a file and its checksum, and need not: nothing that is read from a checkpoint is ever run.
"""

import json
import os
import stat
import zlib
from collections.abc import Mapping
from operator import index
from pathlib import Path
from typing import NamedTuple

from anydevice.errors import UsageError
from anydevice.files import write_through

FORMAT = "anydevice checkpoint 2"
MANIFEST = "manifest.json"


class CheckpointError(UsageError):
    """A checkpoint cannot be written or is not what was expected; the text says what to do."""


class Sum(NamedTuple):
    """What is known of a file's content."""

    size: int
    crc: int

    @classmethod
    def of(cls, path: Path) -> "Sum":
        """Reads the file."""
        size = crc = 0
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                size, crc = size + len(part), zlib.crc32(part, crc)
        return cls(size, crc)

    def __str__(self) -> str:
        return f"{self.size} bytes, checksum {self.crc:08x}"


def seal(folder: Path, known: Mapping[str, Sum]) -> None:
    """Writes the manifest of what is in the folder; sums that are `known` are not taken again."""
    sums = {name: known.get(name) or Sum.of(path) for name, path in files_in(folder).items()}
    write_through(folder / MANIFEST, _text(sums))


def is_sealed(folder: Path) -> bool:
    """Whether there is a manifest."""
    return (folder / MANIFEST).is_file()


def check(folder: Path, rank: int = 0, world: int = 1) -> None:
    """Raises unless the folder holds the manifest's files as they were written.

    Of several ranks each reads its share of the files.
    """
    expected, there = _manifest(folder), files_in(folder)
    for name in sorted(expected)[rank::world]:
        if name not in there:
            raise CheckpointError(
                f"expected {name} in {folder}, as {MANIFEST} lists it, got no such file."
            )
        refuse_other_bytes(there[name], expected[name])


def refuse_other_bytes(path: Path, expected: Sum) -> None:
    """Raises unless the file has this content."""
    try:
        found = Sum.of(path)
    except OSError as error:
        raise CheckpointError(f"expected {path.name} in {path.parent}, got {error}.") from error
    if found != expected:
        raise CheckpointError(
            f"expected {path} as it was written ({expected}), got other bytes ({found})."
        )


def files_in(folder: Path) -> dict[str, Path]:
    """Every file of a checkpoint by its name; what could lead out of the folder is refused."""
    found = {}
    try:
        for parent, folders, names in os.walk(folder, onerror=_raise):
            for name in (*folders, *names):
                path = Path(parent, name)
                mode = path.lstat().st_mode
                if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                    raise CheckpointError(
                        f"expected a checkpoint of plain files, got {path}, which is a link or a "
                        "device: copy what it stands for into its place."
                    )
                if name in names:
                    found[path.relative_to(folder).as_posix()] = path
    except OSError as error:
        raise CheckpointError(f"expected a checkpoint in {folder}, got {error}.") from error
    return found


def _raise(error: OSError) -> None:
    raise error


def _text(sums: Mapping[str, Sum]) -> bytes:
    return json.dumps({"format": FORMAT, "files": sums}, indent=1).encode()


def _manifest(folder: Path) -> dict[str, Sum]:
    """What it lists; a manifest that was not written like this is damaged too."""
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
        record = json.loads(text)
        sums = {name: Sum(*map(index, pair)) for name, pair in record["files"].items()}
        whole = text == _text(sums)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"expected a manifest in {path}, got {error!r}.") from error
    if not whole:
        raise CheckpointError(
            f"expected a manifest of the format {FORMAT!r} as it was written, got "
            f"another in {path}."
        )
    return sums
