"""Plans the programs of the published measurements, and compares what is predicted with them."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .records import CASES, Record

Answer = dict[str, Any]  # what `anydevice plan --json` says of one GPU; or {"error": …}
Planner = Callable[..., subprocess.CompletedProcess[str]]
MEMORY = ("allocated", "reserved", "device")


@dataclass(frozen=True)
class Compared:
    """A record and what was predicted of it: bytes, seconds or a verdict."""

    record: Record
    predicted: float | str
    low: float = 0.0
    high: float = 0.0

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return float(self.predicted) / self.record.measured

    @property
    def error(self) -> float:
        """How far off, as a share of what was measured."""
        return abs(self.ratio - 1)

    @property
    def inside(self) -> bool:
        """Whether what was measured lies in the predicted range."""
        return self.low <= self.record.measured <= self.high

    @property
    def wrong(self) -> bool:
        """Whether the verdict is the opposite one; "maybe" is not."""
        return self.predicted == ("no" if self.record.value else "yes")


def _fresh(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, **options)


def planned(record: Record, python: Planner = _fresh) -> Answer:
    """What `anydevice plan` says of the record's program."""
    command = ("-m", "anydevice", "plan", "--json", "--gpu", record.gpu, *record.flags.split())
    launcher = ("torchrun",) * ("--nodes" in record.flags)
    program = (*launcher, str(CASES / record.program), *record.args.split())
    done = python(*command, *program, cwd=CASES)
    try:
        said = json.loads(done.stdout)
        answer: Answer = said["gpus"][0] if "gpus" in said else _of_cluster(said["clusters"][0])
    except (ValueError, LookupError):
        return {"error": done.stderr[-600:]}
    return answer


def _of_cluster(cluster: dict[str, Any]) -> Answer:
    """Its tightest role, with the time of all."""
    role = next(r for r in cluster["roles"] if r["rank"] == cluster["tightest"])
    return {**role, "time": cluster["time"]}


def compared(record: Record, answer: Answer) -> Compared:
    """The record beside its prediction."""
    if record.quantity == "fits":
        return Compared(record, answer["verdict"])
    if record.quantity == "rate":
        time = answer["time"]
        each, expected = time["tokens_per_second_per_gpu"], time["seconds"]
        return Compared(record, each, each * expected / time["high"], each * expected / time["low"])
    if record.quantity == "time":
        time = answer["time"]
        ends = [time[name] / record.scale for name in ("seconds", "low", "high")]
        return Compared(record, *ends)
    figure, spread = answer["peak_bytes"][record.quantity], answer.get("range_bytes", {})
    low, high = spread.get(record.quantity, (figure, figure))
    return Compared(record, figure, low, high)


@dataclass(frozen=True)
class Summary:
    """The errors of one quantity."""

    quantity: str
    count: int
    median: float
    p90: float
    worst: float
    ratio: float  # the median of predicted over measured
    inside: int


def summary(quantity: str, rows: Sequence[Compared]) -> Summary:
    """Of at least one row."""
    errors = sorted(row.error for row in rows)
    p90 = errors[-(-len(errors) * 9 // 10) - 1]
    ratio = statistics.median(row.ratio for row in rows)
    inside = sum(row.inside for row in rows)
    return Summary(quantity, len(rows), statistics.median(errors), p90, errors[-1], ratio, inside)


def summaries(rows: Iterable[Compared]) -> list[Summary]:
    """One for each quantity, of the main readings."""
    main = [row for row in rows if row.record.reading == "main"]
    found = (
        (name, [r for r in main if r.record.quantity == name]) for name in (*MEMORY, "time", "rate")
    )
    return [summary(name, some) for name, some in found if some]
