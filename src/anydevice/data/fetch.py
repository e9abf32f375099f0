"""Downloads a file: verified, resumed where it broke off, on the disk whole or not at all."""

import hashlib
import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

from anydevice.errors import UsageError
from anydevice.files import locked, sync

TIMEOUT = 30.0  # seconds without a byte
TRIES = 3  # in a row without a new byte, for each address
PAUSE = 0.5  # seconds before the second try, twice that before the third
CHUNK = 1 << 18
ALGORITHMS = {32: "md5", 40: "sha1", 64: "sha256"}  # by the length of the checksum in hex


class DownloadFailed(OSError):  # noqa: N818, says what happened
    """No address gave the file; the text says what each of them answered."""


class _Refused(Exception):  # noqa: N818
    """This address will not give the file, no matter how often it is asked."""


def fetch(path: Path, addresses: Sequence[str], checksum: str | None = None) -> Path:
    """The file at `path`, from the first address that has it: `fetch(path, ["https://…"], md5)`."""
    for address in addresses:
        if not address.startswith(("http://", "https://")):
            raise UsageError(
                f"expected an address that begins with http:// or https://, got {address!r}."
            )
    if checksum is not None and not (
        len(checksum) in ALGORITHMS and re.fullmatch("[0-9a-fA-F]+", checksum)
    ):
        raise UsageError(f"expected an MD5, SHA-1 or SHA-256 checksum in hex, got {checksum!r}.")
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_name(f".{path.name}.lock")):  # others wait, and find the file
            if not path.exists():
                _fetch_part(part, addresses, checksum)
                os.replace(part, path)
                sync(path.parent)
    except DownloadFailed:
        raise
    except OSError as error:
        raise DownloadFailed(
            f"{path} cannot be written ({error.strerror or error}): "
            "make room, or name a folder that can be written."
        ) from error
    return path


def _fetch_part(part: Path, addresses: Sequence[str], checksum: str | None) -> None:
    answers = []
    for address in addresses:
        try:
            resumed = _from_address(part, address, checksum)
            wrong = _wrong(part, checksum)
            if wrong and resumed:  # the beginning may be of another file
                part.unlink()
                _from_address(part, address, checksum)
                wrong = _wrong(part, checksum)
            if not wrong:
                return
            part.unlink()
        except _Refused as error:
            wrong = str(error)
        answers.append(f"{address}: {wrong}")
    raise DownloadFailed(f"{part.stem} could not be downloaded. " + "; ".join(answers) + ".")


def _wrong(part: Path, checksum: str | None) -> str:
    if checksum is None:
        return ""
    algorithm = ALGORITHMS[len(checksum)]
    with part.open("rb") as file:
        got = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    if got.hexdigest() == checksum.lower():
        return ""
    return f"expected {algorithm} {checksum}, received {got.hexdigest()}"


def _from_address(part: Path, address: str, checksum: str | None) -> bool:
    """Fills the part, resuming where a connection broke; True if it existed before this call."""
    with part.open("ab") as file:
        if checksum is None:  # nothing would show that the beginning is of another file
            file.truncate(0)
        resumed = furthest = file.seek(0, os.SEEK_END)
        version, tries = None, 0
        while True:
            try:
                version = _receive(file, address, version)
                break
            except urllib.error.HTTPError as error:
                answer = f"{error.code} {error.reason}"
                if error.code < 500 and error.code != 429:
                    raise _Refused(answer) from error
            except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
                answer = str(getattr(error, "reason", error))
            except (http.client.HTTPException, ValueError) as error:
                answer = f"{type(error).__name__}: {error}"
            reached = file.seek(0, os.SEEK_END)
            tries = 1 if reached > furthest else tries + 1
            furthest = max(furthest, reached)
            if tries >= TRIES:
                raise _Refused(f"{answer}, tried {TRIES} times")
            time.sleep(PAUSE * tries)
        file.flush()
        os.fsync(file.fileno())
    return resumed > 0


def _receive(file: BinaryIO, address: str, version: str | None) -> str | None:
    """One request for what is missing; returns, or raises where the answer broke off."""
    begin = file.seek(0, os.SEEK_END)
    request = urllib.request.Request(address, headers={"Accept-Encoding": "identity"})
    if begin:
        request.add_header("Range", f"bytes={begin}-")
        if version:
            request.add_header("If-Range", version)
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        if error.headers.get("Content-Range") == f"bytes */{begin}":
            return version  # it was all there
        file.truncate(0)
        raise ConnectionError("the file is shorter than the part that was there") from error
    with answer:
        place = f"bytes {begin}-"
        if answer.status != 206 or not answer.headers.get("Content-Range", "").startswith(place):
            file.truncate(0)  # the whole file: the server ignores ranges, or the file changed
            begin = 0
        length = answer.headers.get("Content-Length")
        total = begin + int(length) if length else None
        _copy(answer, file, begin, total)
    got = file.seek(0, os.SEEK_END)
    if total is not None and got != total:
        raise ConnectionError(f"the connection ended after {got} of {total} bytes")
    tag: str | None = answer.headers.get("ETag")
    weak = tag is None or tag.startswith("W/")  # a weak one cannot be used in If-Range
    return answer.headers.get("Last-Modified") if weak else tag


def _copy(answer: http.client.HTTPResponse, file: BinaryIO, begin: int, total: int | None) -> None:
    console = Console(stderr=True)
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    name = Path(str(file.name)).stem
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, completed=begin, total=total)
        while chunk := _read(answer):
            file.write(chunk)
            progress.advance(task, len(chunk))


def _read(answer: http.client.HTTPResponse) -> bytes:
    """The next bytes; what goes wrong here is the network's fault, not the disk's."""
    try:
        return answer.read1(CHUNK)
    except OSError as error:
        raise ConnectionError(str(error)) from error
