"""The IDX format of the MNIST family: reads a file, gzipped or plain, into an array."""

import gzip
import zlib
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

MOST_BYTES = 2**31  # that are unzipped into memory; a plain file is mapped, however long
MOST_DIMENSIONS = 32  # that NumPy has in every version
MOST_UNZIPPED = 1032  # bytes that deflate makes of one


class DamagedFile(ValueError):  # noqa: N818, says what it is
    """A file is not what its name or header says it is."""


def read_idx(path: str | Path) -> NDArray[Any]:
    """The array in an IDX file: `read_idx("train-labels-idx1-ubyte.gz")`.

    A plain file of bytes is mapped into memory, not read; the file never changes.
    """
    path = Path(path)
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    if zipped:
        return _read_zipped(path)
    with path.open("rb") as file:
        dtype, shape = _header(file, path)
        begin, expected = file.tell(), prod(shape) * dtype.itemsize
    _check_size(path, expected, path.stat().st_size - begin)
    if not expected:
        return _shaped(np.empty(0, dtype.newbyteorder("=")), shape, path)
    mapped = np.memmap(path, dtype, mode="c", offset=begin, shape=shape)
    return mapped.astype(dtype.newbyteorder("="), copy=False)


def _read_zipped(path: Path) -> NDArray[Any]:
    try:
        with gzip.open(path) as file:
            dtype, shape = _header(file, path)
            expected = prod(shape) * dtype.itemsize
            most = MOST_UNZIPPED * path.stat().st_size  # a damaged header may ask for any size
            if min(expected, most) > MOST_BYTES:
                raise DamagedFile(
                    f"{path} says that it holds {expected} bytes, more than are unzipped into "
                    f"memory ({MOST_BYTES}): if that is right, unzip it with gunzip."
                )
            content = bytearray(file.read(min(expected, most) + 1))  # to the checksum at the end
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DamagedFile(
            f"{path} is cut off or damaged ({error}): remove it and get it again."
        ) from error
    _check_size(path, expected, len(content))
    array = _shaped(np.frombuffer(content, dtype), shape, path)
    return array.astype(dtype.newbyteorder("="), copy=False)


def _header(file: BinaryIO | gzip.GzipFile, path: Path) -> tuple[np.dtype[Any], tuple[int, ...]]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in DTYPES:
        raise DamagedFile(
            f"{path} is not an IDX file: expected it to begin with 00 00, a type from 08 to 0e and "
            f"the number of dimensions, got {magic.hex(' ') or 'nothing'}."
        )
    if magic[3] > MOST_DIMENSIONS:
        raise DamagedFile(
            f"{path} is no IDX file: expected at most {MOST_DIMENSIONS} dimensions, got {magic[3]}."
        )
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise DamagedFile(f"{path} ends within its header: remove it and get it again.")
    return np.dtype(DTYPES[magic[2]]), tuple(np.frombuffer(sizes, ">u4").tolist())


def _shaped(array: NDArray[Any], shape: tuple[int, ...], path: Path) -> NDArray[Any]:
    try:
        return array.reshape(shape)
    except ValueError as error:  # no samples, of more pixels than there can be
        raise DamagedFile(f"{path} is no IDX file: it says that its shape is {shape}.") from error


def _check_size(path: Path, expected: int, got: int) -> None:
    if got != expected:
        amount = "more" if got > expected else str(got)
        raise DamagedFile(
            f"{path} has a different size than its header says: expected {expected} bytes of data, "
            f"got {amount}. Remove it and get it again."
        )
