"""MNIST and data sets in its format: four IDX files in a folder, downloaded if necessary."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from anydevice.data.fetch import fetch
from anydevice.data.idx_format import DamagedFile, read_idx
from anydevice.data.images import Images, pixel_statistics
from anydevice.errors import UsageError

MIRRORS = "ANYDEVICE_DATA_MIRROR"
FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@dataclass(frozen=True)
class _Family:
    name: str  # of its folder, as torchvision calls it
    addresses: tuple[str, ...]
    md5: tuple[str, str, str, str]  # of FILES, gzipped
    classes: tuple[str, ...]


_MNIST = _Family(
    "MNIST",
    ("https://ossci-datasets.s3.amazonaws.com/mnist/",),
    (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    tuple("0123456789"),
)
_FASHION = _Family(
    "FashionMNIST",
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
        "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ),
)  # fmt: skip
_KUZUSHIJI = _Family(
    "KMNIST",
    ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
    (
        "bdb82020997e1d708af4cf47b453dcf7",
        "e144d726b3acfaa3e44228e80efcd344",
        "5c965bf0a639b31b8f53240b1b52f4d7",
        "7320c461ea6c1c855c0b718fb2a4b134",
    ),
    ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
)


def mnist(folder: str | Path = "data", address: str | None = None) -> tuple[Images, Images]:
    """Handwritten digits: 60,000 training and 10,000 test images of 28 × 28 pixels.

    Args:
        folder: Where the files are, as torchvision lays them out, or where to download them to.
        address: Where to download them from. Default: the mirrors in ANYDEVICE_DATA_MIRROR, then
            the public address.

    Returns:
        Training and test images.

    Raises:
        DownloadFailed: If no address gives the files.
        DamagedFile: If a file is not what its name says.

    Example:
        >>> train, test = mnist("data")  # doctest: +SKIP
    """
    return _load(_MNIST, folder, address)


def fashion_mnist(folder: str | Path = "data", address: str | None = None) -> tuple[Images, Images]:
    """Pictures of clothes, in MNIST's format.

    Arguments, result and errors are those of `mnist`.

    Example:
        >>> train, test = fashion_mnist("data")  # doctest: +SKIP
    """
    return _load(_FASHION, folder, address)


def kmnist(folder: str | Path = "data", address: str | None = None) -> tuple[Images, Images]:
    """Cursive Japanese characters (Kuzushiji), in MNIST's format.

    Arguments, result and errors are those of `mnist`.

    Example:
        >>> train, test = kmnist("data")  # doctest: +SKIP
    """
    return _load(_KUZUSHIJI, folder, address)


def idx(
    folder: str | Path,
    address: str | None = None,
    *,
    checksums: Mapping[str, str] | None = None,
    classes: Sequence[str] | None = None,
    files: Sequence[str] = FILES,
) -> tuple[Images, Images]:
    """Any data set in MNIST's format: four IDX files, plain or gzipped.

    Args:
        folder: Where the files are.
        address: Where missing files come from, as `address/NAME.gz`. Default: nowhere.
        checksums: For each NAME the MD5, SHA-1 or SHA-256 of NAME.gz, in hex.
        classes: The names of the classes. Default: the labels' numbers.
        files: The names of the files: training images and labels, test images and labels.

    Returns:
        Training and test images.

    Raises:
        UsageError: If a file is missing and there is no address, or a label has no class.
        DownloadFailed: If the address does not give a file.
        DamagedFile: If a file is not what its name says.

    Example:
        >>> train, test = idx("my/folder")  # doctest: +SKIP
    """
    if len(files) != 4:
        raise UsageError(
            f"expected four files, images and labels for training and test, got {len(files)}."
        )
    known, folder = checksums or {}, Path(folder)
    paths = []
    for name in files:
        path = _found(name, folder, folder / "raw")
        if path is None and address is None:
            raise UsageError(
                f"expected {name} or {name}.gz in {folder} or {folder / 'raw'}, where neither is: "
                "name another folder, or pass address= to download it."
            )
        if path is None:
            sources = [f"{address}".rstrip("/") + f"/{name}.gz"]
            path = fetch(folder / f"{name}.gz", sources, known.get(name))
        paths.append(path)
    return _images(paths, classes)


def _load(family: _Family, folder: str | Path, address: str | None) -> tuple[Images, Images]:
    folder, paths = Path(folder), []
    home = folder / family.name / "raw"
    places = [address] if address else [*_mirrors(family), *family.addresses]
    for name, md5 in zip(FILES, family.md5, strict=True):
        path = _found(name, home, folder / family.name, folder)
        if path is None:
            sources = [f"{place.rstrip('/')}/{name}.gz" for place in places]
            path = fetch(home / f"{name}.gz", sources, md5)
        paths.append(path)
    return _images(paths, family.classes)


def _mirrors(family: _Family) -> list[str]:
    """A mirror is a data folder on a server, so one mirror serves every family."""
    mirrors = re.split(r"[\s,]+", os.environ.get(MIRRORS, "").strip())
    return [f"{mirror.rstrip('/')}/{family.name}/raw" for mirror in mirrors if mirror]


def _found(name: str, *folders: Path) -> Path | None:
    candidates = (folder / file for folder in folders for file in (name, f"{name}.gz"))
    return next((path for path in candidates if path.is_file()), None)


def _images(paths: Sequence[Path], classes: Sequence[str] | None) -> tuple[Images, Images]:
    seen, unseen = _pair(paths[0], paths[1]), _pair(paths[2], paths[3])
    last = max(int(labels.max()) for _, labels in (seen, unseen))
    names = [str(label) for label in range(last + 1)] if classes is None else classes
    if last >= len(names):
        raise UsageError(f"expected a class for each label up to {last}, got {len(names)} classes.")
    mean, std = pixel_statistics(seen[0])
    return Images(*seen, names, mean, std), Images(*unseen, names, mean, std)


def _pair(images_path: Path, labels_path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.ndim != 3 or labels.ndim != 1 or labels.dtype.kind == "f":
        raise DamagedFile(
            f"expected images of 3 dimensions and whole labels of 1, got {images.ndim} in "
            f"{images_path} and {labels.ndim} ({labels.dtype}) in {labels_path}."
        )
    if len(images) != len(labels) or not images.size:
        raise DamagedFile(
            f"expected a label for each image, got {len(images)} images in {images_path} and "
            f"{len(labels)} labels in {labels_path}."
        )
    if labels.min() < 0:
        raise DamagedFile(f"expected labels from 0 up, got {labels.min()} in {labels_path}.")
    return torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels).long()
