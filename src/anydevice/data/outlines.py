"""The outlines of the ten shapes, each once as a map of distances that images are drawn from."""

from collections.abc import Iterable
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

CELLS = 256  # a map's width in cells: a tenth of an image's pixel each
REACH = 1.5  # a map goes from -REACH to REACH; shapes lie within the circle of radius 1

# Vertices as (x, y), y upwards.
POLYGONS: dict[str, list[tuple[float, float]]] = {
    "triangle": [(0, 1), (0.87, -0.5), (-0.87, -0.5)],
    "square": [(0.75, 0.75), (0.75, -0.75), (-0.75, -0.75), (-0.75, 0.75)],
    "star": [
        (0, 1), (0.22, 0.31), (0.95, 0.31), (0.36, -0.12), (0.59, -0.81),
        (0, -0.38), (-0.59, -0.81), (-0.36, -0.12), (-0.95, 0.31), (-0.22, 0.31),
    ],
    "cross": [
        (0.3, 0.95), (0.3, 0.3), (0.95, 0.3), (0.95, -0.3), (0.3, -0.3), (0.3, -0.95),
        (-0.3, -0.95), (-0.3, -0.3), (-0.95, -0.3), (-0.95, 0.3), (-0.3, 0.3), (-0.3, 0.95),
    ],
    "heart": [
        (0, 0.45), (0.2, 0.72), (0.48, 0.8), (0.76, 0.7), (0.9, 0.42), (0.84, 0.08), (0.6, -0.3),
        (0, -0.92), (-0.6, -0.3), (-0.84, 0.08), (-0.9, 0.42), (-0.76, 0.7),
        (-0.48, 0.8), (-0.2, 0.72),
    ],
    "arrow": [
        (1, 0), (0.2, 0.8), (0.2, 0.28), (-0.95, 0.28), (-0.95, -0.28), (0.2, -0.28), (0.2, -0.8),
    ],
    "hourglass": [(0.75, 0.9), (0.12, 0), (0.75, -0.9), (-0.75, -0.9), (-0.12, 0), (-0.75, 0.9)],
    "bolt": [(0.35, 1), (-0.7, -0.15), (-0.05, -0.15), (-0.35, -1), (0.7, 0.15), (0.05, 0.15)],
}  # fmt: skip
CLASSES = ("circle", *POLYGONS, "moon")


@cache
def distance_maps() -> Floats:
    """Distance from each cell to each outline, negative inside: ten maps, then one of a stroke."""
    side = ((np.arange(CELLS, dtype=np.float32) + 0.5) / CELLS * 2 - 1) * np.float32(REACH)
    x: Floats
    y: Floats
    x, y = np.meshgrid(side, -side)
    circle = np.sqrt(x * x + y * y) - np.float32(0.9)
    bite = np.sqrt((x - np.float32(0.5)) ** 2 + y * y) - np.float32(0.75)
    polygons = [_polygon(x, y, np.array(vertices, np.float32)) for vertices in POLYGONS.values()]
    stroke = _to_segment(x, y, *np.array([(-1, 0), (1, 0)], np.float32))
    maps = np.stack([circle, *polygons, np.maximum(circle, -bite), stroke])
    maps.flags.writeable = False  # kept, and handed to every caller
    return maps


def _polygon(x: Floats, y: Floats, vertices: Floats) -> Floats:
    distance = np.full_like(x, np.inf)
    inside = np.zeros(x.shape, bool)
    for start, end in _edges(vertices):
        distance = np.minimum(distance, _to_segment(x, y, start, end))
        if start[1] != end[1]:  # a ray to the right crosses the edge: in becomes out
            crossing = start[0] + (y - start[1]) / (end[1] - start[1]) * (end[0] - start[0])
            inside ^= ((start[1] > y) != (end[1] > y)) & (x < crossing)
    return np.where(inside, -distance, distance)


def _to_segment(x: Floats, y: Floats, start: Floats, end: Floats) -> Floats:
    along = end - start
    share = ((x - start[0]) * along[0] + (y - start[1]) * along[1]) / (along * along).sum()
    share = np.clip(share, 0, 1)
    dx, dy = x - start[0] - share * along[0], y - start[1] - share * along[1]
    distance: Floats = np.sqrt(dx * dx + dy * dy)
    return distance


def _edges(vertices: Floats) -> Iterable[tuple[Floats, Floats]]:
    return zip(vertices, np.roll(vertices, -1, axis=0), strict=True)
