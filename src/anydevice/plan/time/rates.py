"""What a GPU and its host reach in practice: rates.toml, and what was measured on this machine."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from anydevice.devices.catalogue import Card
from anydevice.errors import UsageError
from anydevice.files import write_whole
from anydevice.tables import Table
from anydevice.virtual.cache import MODE, cache_dir, folder

SIDES = ("value", "quick", "slow")
FORMAT = "anydevice rates 1"
SPREAD = 1.05  # the range of a figure that was measured on this machine


@dataclass(frozen=True)
class Rate:
    """One constant: the value that predictions use, the ends of its range, and its source."""

    name: str
    value: float
    quick: float
    slow: float
    unit: str
    source: str
    assumed: bool
    cause: str
    cards: Mapping[str, float]

    def of(self, kind: str, side: str) -> float:
        """The rate for one kind of GPU; a value for it in `cards` shifts the whole range."""
        own, figure = self.cards.get(kind, self.value), float(getattr(self, side))
        return figure * own / self.value if self.value else own


@cache
def rates() -> Mapping[str, Rate]:
    """All constants by name."""
    table = tomllib.loads(files(__package__).joinpath("rates.toml").read_text("utf-8"))
    return {name: Rate(name=name, **{"cards": {}, **entry}) for name, entry in table.items()}


class Rates:
    """The constants of one card: `Rates(card("t4"))["bandwidth"]`.

    With a side, "quick" or "slow", those of one cause, or all, are at that end of their range.
    """

    def __init__(
        self,
        card: Card,
        side: str = "value",
        measured: Mapping[str, float] | None = None,
        cause: str = "",
    ) -> None:
        if side not in SIDES:
            raise UsageError(f"expected one of {', '.join(SIDES)}, got {side!r}.")
        self.card = card
        self.measured = stored(card) if measured is None else measured
        self._values = {}
        for name, rate in rates().items():
            end = side if cause in ("", rate.cause) else "value"
            self._values[name] = rate.of(card.kind, end)
            if name in self.measured:
                quick = SPREAD if rate.quick >= rate.value else 1 / SPREAD
                spread = {"value": 1, "quick": quick, "slow": 1 / quick}[end]
                self._values[name] = self.measured[name] * spread

    def __getitem__(self, name: str) -> float:
        return self._values[name]

    def arithmetic(self, unit: str) -> float:
        """FLOP/s that large products reach in this arithmetic."""
        peak = self.card.peak
        if unit in ("float32", "float64", "complex64", "complex128"):
            known = peak.get("float64" if unit in ("float64", "complex128") else "float32")
            return (known or peak["float32"] / 32) * self["cuda_cores"]
        if unit == "tf32" and unit in peak:
            return peak[unit] * self["tf32"]
        if unit in ("float8", "int8") and unit in peak:
            return peak[unit] * self["float8"]
        if unit in ("bfloat16", "float16") and unit in peak:
            return peak[unit] * self["tensor_cores"]
        return peak["float32"] * self["cuda_cores"]  # without such a unit, float32 is used

    def on_tensor_cores(self, unit: str) -> bool:
        """Whether the card has tensor cores for it."""
        return unit in ("tf32", "float8", "int8", "bfloat16", "float16") and unit in self.card.peak


@cache
def causes() -> tuple[str, ...]:
    """What predictions may err by, independently of each other."""
    return tuple(dict.fromkeys(rate.cause for rate in rates().values()))


def table() -> Table:
    """Every constant with its source."""
    columns = ("constant", "value", "quick to slow", "unit", "source")
    shown = Table(columns, right=columns[1:3], title="Rates that time predictions use")
    shown.rows += (_row(rate) for rate in rates().values())
    return shown


def to_json() -> str:
    """The same as JSON."""
    return json.dumps([{**asdict(rate), "cards": dict(rate.cards)} for rate in rates().values()])


def _row(rate: Rate) -> tuple[str, ...]:
    ends = f"{_text(rate.quick)}–{_text(rate.slow)}"
    return rate.name, _text(rate.value), ends, rate.unit, rate.source


def _text(figure: float) -> str:
    return f"{figure * 1e6:g} µs" if 0 < figure < 1e-3 else f"{figure:g}"


def rates_file(card: Card) -> Path:
    """Where the rates measured on this machine are kept for a card."""
    return cache_dir() / "rates" / f"{card.kind}.json"


def stored(card: Card) -> dict[str, float]:
    """What `anydevice plan --calibrate` measured on such a card; empty if it never ran."""
    path = rates_file(card)
    try:
        kept: Any = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(_damaged(path, str(error))) from None
    if not isinstance(kept, dict) or kept.get("format") != FORMAT:
        raise UsageError(_damaged(path, f"expected the format {FORMAT!r}"))
    return {name: float(figure) for name, figure in kept["rates"].items() if name in rates()}


def store(card: Card, measured: Mapping[str, float], device: str) -> Path:
    """Saves what was measured for a card."""
    path = folder("rates") / rates_file(card).name
    kept = {"format": FORMAT, "card": card.kind, "device": device, "rates": dict(measured)}
    write_whole(path, json.dumps(kept, indent=2).encode(), mode=MODE)
    return path


def _damaged(path: Path, why: str) -> str:
    return (
        f"expected the rates measured on this machine in {path}, got a file that cannot be read "
        f"({why}): delete it, or measure again with anydevice plan --calibrate."
    )
