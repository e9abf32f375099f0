"""Runs compared: means over seeds, which parameter matters, and two runs side by side."""

import json
import math
from collections.abc import Hashable, Iterable, Sequence
from statistics import fmean, stdev
from typing import Any

from anydevice.errors import UsageError, did_you_mean
from anydevice.sweep.jsonable import is_number
from anydevice.sweep.ranking import more_is_better
from anydevice.sweep.records.records import Record, figures_in
from anydevice.tables import Table
from anydevice.text import UNSET, duration_text, size_text

SEED = "seed"
GROUPS = 5  # of a parameter's values, where each run has its own
FEW_RUNS = 4

Group = dict[str, Any]


def over_seeds(records: Sequence[Record], parameters: Sequence[str]) -> list[Group]:
    """For runs that differ in the seed alone: parameters, number, and mean and deviation.

    Empty, if no two runs do.
    """
    others = [name for name in parameters if name != SEED]
    groups: dict[Hashable, list[Record]] = {}
    for record in records:
        if record.state == "done" and record.epochs:
            key = json.dumps([record.parameters.get(name) for name in others], default=str)
            groups.setdefault(key, []).append(record)
    if SEED not in parameters or all(len(group) < 2 for group in groups.values()):
        return []
    return [_mean_of(group, others) for group in groups.values()]


def _mean_of(group: Sequence[Record], others: Sequence[str]) -> Group:
    names = dict.fromkeys(name for record in group for name in figures_in(record.last))
    figures = {}
    for name in names:
        values = [float(r.last[name]) for r in group if is_number(r.last.get(name))]
        finite = all(map(math.isfinite, values))
        spread = stdev(values) if len(values) > 1 and finite else None
        figures[name] = (fmean(values) if finite else math.nan, spread)
    own = {name: group[0].parameters.get(name) for name in others}
    return {"parameters": own, "runs": len(group), "figures": figures}


def seeds_table(groups: Sequence[Group], sort: str | None = None) -> Table:
    """A row for each group: "0.912 ± 0.004"; sorted by a figure, the best first."""
    names = list(dict.fromkeys(name for group in groups for name in group["figures"]))
    if sort in names:
        sign = -1 if more_is_better(str(sort)) else 1
        groups = sorted(groups, key=lambda g: _rank(g["figures"].get(sort, (math.nan,))[0], sign))
    parameters = list(groups[0]["parameters"]) if groups else []
    rows: list[Sequence[str]] = [
        [
            *(_text(group["parameters"][name]) for name in parameters),
            str(group["runs"]),
            *(mean_text(*group["figures"].get(name, (None, None))) for name in names),
        ]
        for group in groups
    ]
    columns = [*parameters, "runs", *(f"{n} (mean)" if n in parameters else n for n in names)]
    return Table(columns, rows, title="mean ± deviation over seeds", right=columns)


def mean_text(mean: float | None, spread: float | None) -> str:
    """`mean_text(0.91234, 0.0041) == "0.9123 ± 0.0041"`."""
    if mean is None:
        return UNSET
    return f"{mean:.4g}" + (f" ± {spread:.2g}" if spread is not None else "")


def importance(
    records: Sequence[Record], parameters: Sequence[str], figure: str
) -> dict[str, float]:
    """The share of a figure's variance that each parameter explains by itself, largest first.

    Values are grouped, at most five groups for numbers; what groups would explain by chance is
    taken off.
    """
    ended = [r for r in records if is_number(r.last.get(figure)) and math.isfinite(r.last[figure])]
    if len(ended) < FEW_RUNS:
        return {}
    values = [float(record.last[figure]) for record in ended]
    shares = {
        name: _explained([record.parameters.get(name) for record in ended], values)
        for name in parameters
    }
    known = {name: share for name, share in shares.items() if share is not None}
    return dict(sorted(known.items(), key=lambda item: -item[1]))


def _explained(given: Sequence[Any], values: Sequence[float]) -> float | None:
    """Omega squared of the groups of a parameter's values; None if it has one value only."""
    labels = _groups(given)
    names = set(labels)
    if len(names) < 2 or len(names) >= len(values):
        return None
    mean = fmean(values)
    total = sum((value - mean) ** 2 for value in values)
    if not total:
        return 0.0
    between = 0.0
    for name in names:
        own = [value for value, label in zip(values, labels, strict=True) if label == name]
        between += len(own) * (fmean(own) - mean) ** 2
    within = (total - between) / (len(values) - len(names))
    return max(0.0, (between - (len(names) - 1) * within) / (total + within))


def _groups(given: Sequence[Any]) -> list[Hashable]:
    numbers = all(is_number(value) for value in given)
    if not numbers or len(set(given)) <= GROUPS:
        return [json.dumps(value, default=str) for value in given]
    order = sorted(range(len(given)), key=lambda place: given[place])
    groups: list[Hashable] = [0] * len(given)
    for rank, place in enumerate(order):
        groups[place] = rank * GROUPS // len(given)
    return groups


def importance_table(shares: dict[str, float], figure: str) -> Table:
    """The shares in percent."""
    rows: list[Sequence[str]] = [[name, f"{100 * share:.0f} %"] for name, share in shares.items()]
    title = f"how much of the variance of {figure} a parameter explains by itself"
    return Table(["parameter", "explains"], rows, title=title, right=["explains"])


def side_by_side(runs: Sequence[tuple[str, Record]]) -> Table:
    """What is known of some runs, a column for each; a * marks the lines that differ."""
    facts = [_facts(record) for _, record in runs]
    names = list(dict.fromkeys(name for each in facts for name in each))
    rows: list[Sequence[str]] = []
    for name in names:
        cells = [each.get(name, UNSET) for each in facts]
        rows.append([name, *cells, "*" if len(set(cells)) > 1 else ""])
    return Table(["", *(title for title, _ in runs), "differs"], rows)


def _facts(record: Record) -> dict[str, str]:
    git = record.git if isinstance(record.git, dict) else {}
    facts = {"state": record.state, **{n: _text(v) for n, v in record.parameters.items()}}
    facts |= {"epochs": str(len(record.epochs))}
    last = {name: _text(record.last[name]) for name in figures_in(record.last)}
    facts |= {f"{name} (figure)" if name in facts else name: text for name, text in last.items()}
    facts["run duration"] = UNSET if record.seconds is None else duration_text(record.seconds)
    facts["peak memory"] = size_text(record.peak_bytes)
    facts["device"] = f"{record.device_name or record.device}{' (virtual)' * bool(record.virtual)}"
    facts["seed of the run"] = _text(record.seed)
    facts["git commit"] = f"{git.get('commit') or UNSET}{' and changes' * bool(git.get('dirty'))}"
    versions = record.versions if isinstance(record.versions, dict) else {}
    return facts | {f"{name} version": str(version) for name, version in versions.items()}


def chosen(records: Sequence[Record], which: Iterable[Any], names: dict[str, str]) -> list[Record]:
    """Runs by their numbers from 1, their keys, or the names they were given."""
    by_key = {record.key: record for record in records}
    by_name = {name: by_key[key] for key, name in names.items() if key in by_key}
    found = []
    for each in which:
        text = str(each)
        if text.isdecimal() and 1 <= int(text) <= len(records):
            found.append(records[int(text) - 1])
        elif text in by_name or text in by_key:
            found.append(by_name.get(text) or by_key[text])
        else:
            hint = did_you_mean(text, by_name, f"there are {len(records)} runs, from 1 on.")
            raise UsageError(f"expected the number or the name of a run, got {text!r}: {hint}")
    return found


def _rank(mean: float, sign: int) -> tuple[bool, float]:
    return math.isnan(mean), sign * mean


def _text(value: Any) -> str:
    if value is None:
        return UNSET
    return f"{value:.4g}" if isinstance(value, float) else str(value)
