import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import anydevice as ad
from anydevice.data import idx_format
from anydevice.data.family import FILES
from anydevice.data.idx_format import DamagedFile, read_idx

CODES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}


def idx_bytes(array: np.ndarray) -> bytes:
    code = CODES[array.dtype.str[1:]]
    head = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def family_files() -> dict[str, bytes]:
    pixels = np.arange(7 * 28 * 28, dtype=np.uint8).reshape(7, 28, 28)
    labels = np.arange(7, dtype=np.uint8)
    arrays = (pixels, labels, pixels[:3], labels[:3])
    return {name: idx_bytes(array) for name, array in zip(FILES, arrays, strict=True)}


def fill(folder: Path, zipped: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in family_files().items():
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("kind", list(CODES))
def test_every_type_is_read_with_its_bytes_in_order(tmp_path, kind: str, zipped: bool) -> None:
    array = np.array([[1, 2, 3], [4, 5, 100]], kind)
    content = idx_bytes(array)
    (tmp_path / "file").write_bytes(gzip.compress(content) if zipped else content)
    read = read_idx(tmp_path / "file")
    assert read.dtype == array.dtype
    assert (read == array).all()


def test_a_plain_file_is_mapped_and_never_written(tmp_path) -> None:
    fill(tmp_path, zipped=False)
    before = (tmp_path / FILES[0]).read_bytes()
    assert isinstance(read_idx(tmp_path / FILES[0]), np.memmap)
    train, _ = ad.data.mnist(tmp_path)
    train.images.zero_()
    assert (tmp_path / FILES[0]).read_bytes() == before


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("place", [".", "MNIST", "MNIST/raw"])
def test_a_family_is_found_in_its_usual_folders(tmp_path, place: str, zipped: bool) -> None:
    fill(tmp_path / place, zipped)
    train, test = ad.data.mnist(tmp_path)
    assert (train.images.shape, train.images.dtype) == ((7, 1, 28, 28), torch.uint8)
    assert train.images.flatten()[:5].tolist() == [0, 1, 2, 3, 4]
    assert (test.labels.tolist(), test.labels.dtype) == ([0, 1, 2], torch.int64)
    assert train.classes == tuple("0123456789")


def damaged(content: bytes, how: str) -> bytes:
    return {
        "magic": b"\1" + content[1:],
        "empty": b"",
        "header": content[:6],
        "short": content[:-1],
        "long": content + b"x",
        "gzip cut off": gzip.compress(content)[:-9],
        "gzip damaged": gzip.compress(content)[:-8] + b"01234567",
        "gzip of a huge size": gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12),
    }[how]


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("magic", "is not an IDX file: expected it to begin with 00 00"),
        ("empty", "got nothing"),
        ("header", "ends within its header"),
        ("short", "expected 7 bytes of data, got 6"),
        ("long", "expected 7 bytes of data, got more|got 8"),
        ("gzip cut off", "cut off or damaged"),
        ("gzip damaged", "cut off or damaged"),
        ("gzip of a huge size", r"expected 792281624\d+ bytes of data, got 0"),
    ],
)
def test_a_damaged_file_is_named_with_what_was_expected(tmp_path, how: str, sentence: str) -> None:
    content = family_files()[FILES[1]]
    fill(tmp_path, zipped=False)
    (tmp_path / FILES[1]).write_bytes(damaged(content, how))
    with pytest.raises(ad.data.DamagedFile, match=sentence) as error:
        ad.data.idx(tmp_path)
    assert FILES[1] in str(error.value)


def head(kind: int, *shape: int) -> bytes:
    return struct.pack(f">HBB{len(shape)}I", 0, kind, len(shape), *shape)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (gzip.compress(head(8, 10**5, 11) + bytes(10**7)), "more than are unzipped into memory"),
        (gzip.compress(head(8, *[2**32 - 1] * 30)), "got 0"),
        (gzip.compress(head(8, 10) + bytes(10**7)), "expected 10 bytes of data, got more"),
        (head(8, *[1] * 200) + b"x", "at most 32 dimensions, got 200"),
        (gzip.compress(head(8, *[1] * 33) + b"x"), "at most 32 dimensions, got 33"),
        (head(14, 0, *[2**32 - 1] * 9), "says that its shape is"),
        (gzip.compress(head(14, 0, *[2**32 - 1] * 9)), "says that its shape is"),
        (head(8, *[2**32 - 1] * 20) + b"x", "got 1"),
    ],
    ids=range(8),  # what gzip writes has the time in it
)
def test_headers_that_ask_for_too_much_are_refused(
    tmp_path, monkeypatch, content: bytes, sentence: str
) -> None:
    monkeypatch.setattr(idx_format, "MOST_BYTES", 10**6)
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(DamagedFile, match=sentence):
        read_idx(tmp_path / "file")


def test_images_without_their_labels_are_refused(tmp_path) -> None:
    fill(tmp_path, zipped=False)
    (tmp_path / FILES[1]).write_bytes(idx_bytes(np.zeros(6, np.uint8)))
    with pytest.raises(ad.data.DamagedFile, match=r"got 7 images in .* and 6 labels in"):
        ad.data.idx(tmp_path)


def test_a_folder_without_the_files_and_too_few_classes_are_wrong_use(tmp_path) -> None:
    with pytest.raises(ad.UsageError, match=f"expected {FILES[0]} or {FILES[0]}.gz in"):
        ad.data.idx(tmp_path)
    fill(tmp_path, zipped=False)
    with pytest.raises(ad.UsageError, match="each label up to 6, got 2 classes"):
        ad.data.idx(tmp_path, classes=["a", "b"])
