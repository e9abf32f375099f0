"""Ten shapes on 28 × 28 grey pixels, drawn by code: a data set that needs no network.

The bytes depend on the seed alone: random bits come straight from PCG64, whose stream numpy
promises not to change, and pixels from +, -, ×, ÷ and √, which every machine rounds alike.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import numpy as np
import torch
from numpy.random import PCG64, SeedSequence
from numpy.typing import NDArray

from anydevice.data.images import Images, pixel_statistics
from anydevice.data.outlines import CELLS, CLASSES, REACH, Floats, distance_maps
from anydevice.errors import UsageError

SIDE = 28
MIDDLE = np.float32((SIDE - 1) / 2)
BLOCK = 250  # images drawn at once: their pixels stay in the processor's cache
STROKE = len(CLASSES)  # the map after those of the classes
STRAY_STROKES = 2
TURN = 0.075  # of a full turn, to either side
DIRECTIONS = 4096


def shapes(train: int = 60_000, test: int = 10_000, seed: int = 0) -> tuple[Images, Images]:
    """Training and test images of ten shapes, 28 × 28 grey pixels, drawn in seconds.

    Args:
        train: How many training images.
        test: How many test images.
        seed: The seed: the same seed gives the same bytes on every machine. The first images of a
            larger set are those of a smaller one.

    Returns:
        Training and test images.

    Raises:
        UsageError: If a number is out of range.

    Example:
        >>> import anydevice as ad
        >>> train, test = ad.data.shapes(1000, 100)
        >>> train
        Images(1000 × 1 × 28 × 28, uint8, 10 classes, on cpu)
    """
    for name, count, least in (("train", train, 1), ("test", test, 1), ("seed", seed, 0)):
        if isinstance(count, bool) or not isinstance(count, int) or count < least:
            raise UsageError(
                f"expected {name} to be an integer of at least {least}, got {count!r}."
            )
    seen, unseen = _draw(seed, 0, train), _draw(seed, 1, test)
    mean, std = pixel_statistics(seen[0])
    return Images(*seen, CLASSES, mean, std), Images(*unseen, CLASSES, mean, std)


class _Draws:
    """Random numbers for one block of images."""

    def __init__(self, *key: int) -> None:
        self.bits = PCG64(SeedSequence(key))

    def raw(self, count: int) -> NDArray[np.uint64]:
        return self.bits.random_raw(count)

    def uniform(self, low: float, high: float) -> Floats:
        """One number for each image of the block."""
        share = (self.raw(BLOCK) >> np.uint64(40)).astype(np.float32).reshape(BLOCK, 1, 1)
        return share * np.float32((high - low) / 2**24) + np.float32(low)

    def chance(self, share: float) -> NDArray[np.bool_]:
        """True for this share of the images."""
        return self.uniform(0, 1) < np.float32(share)

    def direction(self, turn: float) -> Floats:
        """Cosine and sine of an angle of up to this share of a full turn to either side."""
        return _directions()[:, (self.uniform(-turn, turn) * DIRECTIONS).astype(np.int64)]

    def grain(self) -> Floats:
        """Noise from -1 to 1 for each pixel, mostly near 0."""
        raw = self.raw(2 * BLOCK * SIDE * SIDE // 8).astype("<u8", copy=False)
        first, second = raw.view(np.uint8).reshape(2, BLOCK, SIDE, SIDE)
        return (first.astype(np.float32) + second - np.float32(255)) / np.float32(255)


@cache
def _directions() -> Floats:
    # Rounded, because the last digits of a cosine differ between machines.
    angle = np.arange(DIRECTIONS) * (2 * np.pi / DIRECTIONS)
    return np.round(np.stack([np.cos(angle), np.sin(angle)]), 6).astype(np.float32)


def _draw(seed: int, split: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = range(-(-count // BLOCK))
    distance_maps()  # before the threads, which would each make them
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        images, labels = zip(*pool.map(partial(_draw_block, seed, split), blocks), strict=True)
    pixels = np.concatenate(images)[:count, None]
    return torch.from_numpy(pixels), torch.from_numpy(np.concatenate(labels)[:count])


def _draw_block(seed: int, split: int, block: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images and labels of one block, each class equally often."""
    draws = _Draws(seed, split, block)
    labels = np.argsort(draws.raw(BLOCK), kind="stable") % len(CLASSES)
    ink = _shape_ink(draws, labels)
    for _ in range(STRAY_STROKES):
        np.maximum(ink, _stroke_ink(draws), out=ink)
    contrast = draws.uniform(80, 220)
    paper = draws.uniform(0, 0.6) * (255 - contrast)
    inverted = draws.chance(0.2)
    paper = np.where(inverted, 255 - paper, paper)
    grid = np.arange(SIDE, dtype=np.float32) - MIDDLE
    grey = ink * np.where(inverted, -contrast, contrast)
    grey += paper + grid * draws.uniform(-2.5, 2.5) + grid[:, None] * draws.uniform(-2.5, 2.5)
    grey += draws.grain() * draws.uniform(5, 40)
    return np.clip(grey + np.float32(0.5), 0, 255).astype(np.uint8), labels.astype(np.int64)


def _shape_ink(draws: _Draws, labels: NDArray[np.int64]) -> Floats:
    """How much of each pixel the shapes cover, filled or as an outline."""
    size, stretch = draws.uniform(6.5, 11), draws.uniform(0.8, 1.25)
    room = MIDDLE + 1 - size  # so that a shape stays in the picture, but for a corner
    x, y = (MIDDLE + np.clip(draws.uniform(-4, 4), -room, room) for _ in range(2))
    distance = _distances(
        labels[:, None, None], x, y, draws.direction(TURN), size * stretch, size / stretch,
        draws.uniform(-0.25, 0.25),
    )  # fmt: skip
    filled, half_stroke = draws.chance(0.5), draws.uniform(0.8, 1.4)
    return _covered(np.where(filled, distance, np.abs(distance) - half_stroke))


def _stroke_ink(draws: _Draws) -> Floats:
    """A stray stroke somewhere in each picture, mostly fainter than the shape."""
    x, y = draws.uniform(0, SIDE), draws.uniform(0, SIDE)
    length, direction = draws.uniform(3, 6), draws.direction(0.5)
    strokes = np.full((BLOCK, 1, 1), STROKE)
    distance = _distances(strokes, x, y, direction, length, length, np.float32(0))
    return _covered(distance - draws.uniform(0.5, 1.2)) * draws.uniform(0.3, 0.9)


def _covered(distance: Floats) -> Floats:
    covered: Floats = np.clip(np.float32(0.5) - distance, 0, 1)
    return covered


def _distances(
    outlines: NDArray[np.int64],
    x: Floats,
    y: Floats,
    direction: Floats,
    wide: Floats,
    high: Floats,
    shear: Floats | np.float32,
) -> Floats:
    """Each pixel's distance to its image's outline, in pixels, looked up in the outline's map."""
    (cos, sin), scale = direction, np.float32(CELLS / 2 / REACH)
    down_x, down_y = -sin / high * scale, cos / high * scale
    across_x, across_y = cos / wide * scale + shear * down_x, sin / wide * scale + shear * down_y
    grid = np.arange(SIDE, dtype=np.float32)
    dx, dy = grid - x, grid[:, None] - y
    column, row = across_x * dx + across_y * dy, down_x * dx + down_y * dy
    for cell in (column, row):
        cell += np.float32(CELLS / 2)
        np.clip(cell, 0, CELLS - 1, out=cell)
    index = (outlines.astype(np.int32) * CELLS + row.astype(np.int32)) * CELLS
    index += column.astype(np.int32)
    distance: Floats = distance_maps().reshape(-1).take(index) * np.minimum(wide, high)
    return distance
