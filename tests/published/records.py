"""The published measurements: published.json, one record for each figure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
CASES = HERE / "cases"
UNITS = {"tokens/s": 1.0, "GB": 1e9, "MB": 1e6, "MiB": 2**20, "GiB": 2**30, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class Record:
    """One published figure, and the program that it was measured of.

    `reading` is "main", or "alternative" for another way to read what the source says of its
    program. `seen` is False for a figure with which in view no program or constant was chosen.
    """

    id: str
    source: str
    card: str
    gpu: str
    torch: str
    model: str
    quantity: str  # allocated, reserved, device, time, rate (tokens/s on each GPU), fits
    unit: str
    value: float | bool
    program: str
    args: str
    flags: str  # of anydevice plan
    scale: int  # planned steps are this many of the published ones
    reading: str
    note: str
    seen: bool = True

    @property
    def key(self) -> tuple[str, ...]:
        """What is planned: several figures may be of one run."""
        return (self.gpu, self.flags, self.program, self.args)

    @property
    def measured(self) -> float:
        """The figure in bytes or seconds."""
        return float(self.value) * UNITS[self.unit]


@cache
def records() -> list[Record]:
    """All of them, in the order of published.json."""
    return [Record(**entry) for entry in json.loads((HERE / "published.json").read_text("utf-8"))]
