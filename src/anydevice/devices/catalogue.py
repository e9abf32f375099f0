"""The known GPUs: what torch reports of each, and how fast each is. The figures: catalogue.toml."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from anydevice.errors import UsageError, did_you_mean
from anydevice.text import UNSET, size_text

if TYPE_CHECKING:
    from anydevice.tables import Table


@dataclass(frozen=True)
class Card:
    """A kind of GPU; sizes in bytes, rates in bytes or operations a second."""

    kind: str
    name: str
    architecture: str
    capability: tuple[int, int]
    memory: int
    multiprocessors: int
    threads_per_multiprocessor: int
    l2_cache: int
    bandwidth: float
    memory_bus: int  # bits
    link: float
    peak: Mapping[str, float] = field(hash=False)
    source: Mapping[str, str] = field(hash=False, repr=False)


@cache
def cards() -> Mapping[str, Card]:
    """All known GPUs by kind, oldest first: `cards()["t4"].multiprocessors == 40`."""
    table = tomllib.loads(files(__package__).joinpath("catalogue.toml").read_text("utf-8"))
    return MappingProxyType({kind: _card(kind, entry) for kind, entry in table.items()})


def card(kind: str) -> Card:
    """The GPU of this kind, however it is spelled: `card("RTX 4090") == card("rtx-4090")`."""
    known, wanted = cards(), _squeeze(str(kind))
    for name, entry in known.items():
        if wanted in (_squeeze(name), _squeeze(entry.name)):
            return entry
    holding = [n for n, e in known.items() if wanted in _squeeze(n) or wanted in _squeeze(e.name)]
    if len(holding) == 1 and len(wanted) > 2:  # "4090", "h100-80gb"
        return known[holding[0]]
    hint = did_you_mean(str(kind), known, most=3, key=_squeeze, alike=0.5)
    raise UsageError(f"expected a GPU in the catalogue, got {kind!r}: {hint}")


def known_table() -> "Table":
    """The catalogue as a table, in the units of data sheets."""
    from anydevice.tables import Table  # whose rich costs time that `anydevice run` would wait for

    dtypes = {"float32": "fp32", "tf32": "tf32", "bfloat16": "bf16", "float16": "fp16"}
    figures = ("memory", "GB/s", "SMs", *dtypes.values())
    table = Table(("kind", "name", "sm", *figures), right=figures)
    table.title = "Known GPUs; fp32 to fp16 are dense peaks in TFLOP/s"
    for entry in cards().values():
        peaks = (entry.peak.get(dtype) for dtype in dtypes)
        table.rows.append(
            (
                entry.kind,
                entry.name,
                "{}.{}".format(*entry.capability),
                size_text(entry.memory),
                f"{entry.bandwidth / 1e9:,.0f}",
                str(entry.multiprocessors),
                *(f"{peak / 1e12:,.1f}" if peak else UNSET for peak in peaks),
            )
        )
    return table


def _card(kind: str, entry: dict[str, Any]) -> Card:
    return Card(kind=kind, **{**entry, "capability": tuple(entry["capability"])})


def _squeeze(name: str) -> str:
    """The letters and digits that distinguish one GPU from another; SXM is what they are without.

    >>> _squeeze("NVIDIA A100-SXM4-40GB") == _squeeze("a100-40gb")
    True
    """
    words = re.findall(r"[a-z]+|\d+", re.sub(r"sxm\d?", "", name.lower()))
    return "".join(word for word in words if word not in ("nvidia", "geforce", "tesla"))
