"""The findings of a measurement: figures as tables, as JSON, and in a notebook."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rich.text import Text

from anydevice.tables import Shown, Table
from anydevice.text import UNSET, counted, duration_text, number_text, times_text

TITLES = {
    "matmul": "Product of square matrices",
    "product": "Element-wise product of square matrices",
    "convolution": "Convolution: 1000 × 1 × 28² by 6 of 5²; 32 × 64 × 56² by 64 of 3²",
    "transfer": "Transfer of 64 MiB between host and device",
}
SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}


@dataclass(frozen=True)
class Place:
    """A device that was measured; `threads` are PyTorch's on a CPU, `usable` its logical cores."""

    device: str
    name: str
    virtual: bool
    threads: int | None = None
    usable: int | None = None

    def __str__(self) -> str:
        if self.threads is None:
            return f"{self.device}: {self.name}"
        line = f"{self.device}: {self.name}, {counted(self.threads, 'thread')} in PyTorch"
        if self.threads == self.usable:
            return f"{line}, one for each logical core"
        return f"{line} on {counted(self.usable or 0, 'logical core')}"


@dataclass(frozen=True)
class Figure:
    """One measured figure: seconds of one call, and what follows from them.

    `low` and `high` are the quartiles, `unsynchronised` is what a clock shows that does not wait
    for the device, and `of_ceiling` is the share of the card's peak in the catalogue. Where
    `virtual` is true, the CPU did the work, and no figure is a GPU's speed.
    """

    kind: str
    what: str
    dtype: str
    device: str
    virtual: bool
    seconds: float
    low: float
    high: float
    repeats: int
    unsynchronised: float
    flops_per_second: float | None
    bytes_per_second: float
    ceiling: float | None
    of_ceiling: float | None

    @property
    def spread(self) -> float:
        """The distance between the quartiles, as a share of the median."""
        return (self.high - self.low) / self.seconds

    @property
    def computes(self) -> bool:
        """Whether arithmetic is the limit of this kind of work; else bytes are."""
        return self.kind in ("matmul", "convolution")

    @property
    def rate(self) -> float:
        """Operations a second, or bytes."""
        return (self.flops_per_second or 0.0) if self.computes else self.bytes_per_second


@dataclass(frozen=True)
class LeftOut:
    """What was not measured, and why; an empty field stands for all values.

    `expected` is how many seconds a call would take, where that is the reason.
    """

    kind: str
    what: str
    dtype: str
    device: str
    reason: str
    expected: float | None = None

    def __str__(self) -> str:
        line = f"{self.what} {self.dtype}".strip()
        return line if self.expected is None else f"{line} ({duration_text(self.expected)})"


@dataclass(frozen=True, repr=False)
class Findings(Shown):
    """All figures of one measurement, which show themselves in a terminal and a notebook.

    Attributes:
        places: The devices that were measured.
        figures: A `Figure` for each task on each device.
        left_out: What was not measured, and why.
    """

    places: tuple[Place, ...]
    figures: tuple[Figure, ...]
    left_out: tuple[LeftOut, ...]

    def to_json(self) -> str:
        """The figures for a program, as JSON."""
        return json.dumps(asdict(self), indent=2)

    def tables(self) -> list[Table]:
        """A table for each kind of work."""
        kinds = dict.fromkeys(figure.kind for figure in self.figures)
        return [self._table(kind) for kind in kinds]

    def notes(self) -> list[str]:
        """What you need to know to read the figures."""
        virtual = [place.device for place in self.places if place.virtual]
        lines = [str(place) for place in self.places]
        if virtual:
            lines.append(
                f"{' and '.join(virtual)}: virtual. The CPU did the work, so no figure there is a "
                "GPU's speed."
            )
        waited = [f for f in self.figures if f.device != "cpu" and not f.virtual]
        if waited:
            worst = max(waited, key=lambda f: f.seconds / f.unsynchronised)
            lines.append(
                "'no wait' is what a clock shows that does not wait for the GPU: it times the "
                f"launch. It would make {worst.what} {worst.dtype} ".rstrip()
                + f" {times_text(worst.seconds / worst.unsynchronised)} as fast as it is."
            )
        return lines

    def _table(self, kind: str) -> Table:
        figures = [figure for figure in self.figures if figure.kind == kind]
        unit = "GFLOP/s" if figures[0].computes else "GB/s"
        on_cpu = {(f.what, f.dtype): f.seconds for f in figures if f.device == "cpu"}
        rows = [
            _cells(f, unit, on_cpu.get((f.what, f.dtype.replace("tf", "float")))) for f in figures
        ]
        columns = [name for name in rows[0] if any(row[name] not in ("", UNSET) for row in rows)]
        table = Table(columns, title=TITLES[kind], right=columns[columns.index("median") :])
        table.rows.extend([row[name] for name in columns] for row in rows)
        return table

    def gaps(self) -> list[str]:
        """What was not measured, a line for each kind and reason."""
        groups: dict[tuple[str, str, str], list[str]] = {}
        for left in self.left_out:
            groups.setdefault((left.kind, left.device, left.reason), []).append(str(left))
        lines = []
        for (kind, device, reason), those in groups.items():
            which = ", ".join(filter(None, those))
            lines.append(f"{kind} on {device}{': ' if which else ''}{which}. {reason}.")
        return lines

    def _shown(self) -> Iterator[Table | Text]:
        yield from self.tables()
        yield from map(Text, self.notes())
        for line in self.gaps():
            yield Text.assemble(("Left out: ", "bold"), line)


def _cells(f: Figure, unit: str, on_cpu: float | None) -> dict[str, str]:
    """A figure as text; `on_cpu` is the seconds of the same work there."""
    compared = on_cpu and f.device != "cpu" and not f.virtual
    return {
        f.kind: f.what,
        "dtype": SHORT.get(f.dtype, f.dtype),
        "device": f"{f.device} virtual" if f.virtual else f.device,
        "median": duration_text(f.seconds),
        "IQR": f"{f.spread:.0%}",
        unit: number_text(f.rate / 1e9),
        "of peak": f"{f.of_ceiling:.0%}" if f.of_ceiling else UNSET,
        "no wait": "same" if f.device == "cpu" else duration_text(f.unsynchronised),
        "vs cpu": times_text(on_cpu / f.seconds) if on_cpu and compared else UNSET,
    }
