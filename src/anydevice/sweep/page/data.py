"""The data of the report: a sweep's records as columns and curves, limited in size."""

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

from anydevice.sweep.jsonable import strict
from anydevice.sweep.ranking import badness, compared_by, more_is_better
from anydevice.sweep.records.records import Damaged, Record, Sheet
from anydevice.sweep.results.comparing import importance, mean_text, over_seeds
from anydevice.train.history import is_health

CURVE_NUMBERS = 120_000  # of all curves together: under a megabyte of the page
POINTS = (200, 100, 50, 25)  # of a curve; fewer where there are many
GROUPS = 200  # of runs that differ in the seed alone
CLASSES, PLACES = 40, 400  # rows of a picture, and numbers in one
TEXT = 200  # characters of a parameter's value
ERRORS, ERROR_TEXT = 40, 6000  # different tracebacks, and characters of one


def page_data(
    records: Sequence[Record], damaged: Sequence[Damaged] = (), sheet: Sheet | None = None
) -> dict[str, Any]:
    """Everything that the page shows, as JSON can hold it."""
    names = dict.fromkeys(sheet.parameters if sheet else ())
    parameters = list(names | dict.fromkeys(name for r in records for name in r.parameters))
    figures = list(
        dict.fromkeys(n for r in records for e in r.epochs for n in e if _is_figure(n, e))
    )
    result = compared_by(figures)
    return {
        "experiment": sheet.experiment if sheet else None,
        "result": result,
        "figures": [{"name": name, "higher": more_is_better(name)} for name in figures],
        "columns": _columns(records, parameters, figures),
        "curves": _curves(records, [*figures, "seconds"], result),
        "pictures": _pictures(records, result),
        "means": _means(records, parameters),
        "importance": _importance(records, parameters, result),
        "failures": _failures(records),
        "damaged": [str(each) for each in damaged],
        "environment": _environment(records),
    }


def _is_figure(name: str, epoch: dict[str, Any]) -> bool:
    aside = name in ("epoch", "seconds") or ("grad_norm" in epoch and is_health(name))
    return not aside and isinstance(epoch[name], (int, float))


def _columns(
    records: Sequence[Record], parameters: Sequence[str], figures: Sequence[str]
) -> list[dict[str, Any]]:
    """A column for everything known about a run: its role on the page, its name, its values."""
    known: list[tuple[str, str, Callable[[Record], object]]] = [
        ("key", "key", lambda r: r.key),
        ("state", "state", lambda r: r.state),
        ("epochs", "epochs", lambda r: len(r.epochs)),
        ("epoch time", "epoch duration", epoch_seconds),
        ("run time", "run duration", lambda r: _number(r.seconds)),
        ("peak", "peak memory", lambda r: _number(r.peak_bytes)),
        ("device", "device", device_of),
        ("virtual", "virtual", lambda r: bool(r.virtual)),
    ]
    known += [("figure", name, partial(_figure, name)) for name in figures]
    known += [("parameter", name, partial(_parameter, name)) for name in parameters]
    return [
        {"role": role, "name": name, "values": [_plain(value(record)) for record in records]}
        for role, name, value in known
    ]


def _figure(name: str, record: Record) -> float | int | None:
    return _number(record.last.get(name))


def _parameter(name: str, record: Record) -> object:
    return record.parameters.get(name)


def epoch_seconds(record: Record) -> float | None:
    """The median of the epochs' durations."""
    spent = [s for epoch in record.epochs if (s := _number(epoch.get("seconds"))) is not None]
    return median(spent) if spent else None


def device_of(record: Record) -> str | None:
    """The device that a run counts for: "cpu · AMD EPYC", "cuda · NVIDIA H100 (virtual)"."""
    if not record.device:
        return None
    parts = [str(record.device).partition(":")[0], record.device_name]
    name = " · ".join(str(part) for part in dict.fromkeys(parts) if part)
    return f"{name} (virtual)" if record.virtual else name


def _curves(
    records: Sequence[Record], figures: Sequence[str], result: str | None
) -> dict[str, Any]:
    """For each figure a list of every run's values; fewer points, then fewer runs, if too many."""
    lengths = [len(record.epochs) for record in records]
    longest, names = max([1, *lengths]), max(1, len(figures))
    few_enough = (p for p in POINTS if sum(min(n, p) for n in lengths) * names <= CURVE_NUMBERS)
    points = next(few_enough, POINTS[-1])
    begun = [run for run, length in enumerate(lengths) if length]
    kept = _best_and_others(records, begun, CURVE_NUMBERS // (min(points, longest) * names), result)
    places = {run: _spread(range(lengths[run]), points) for run in kept}
    epochs = [[records[run].epochs[place] for place in places[run]] for run in kept]
    return {
        "runs": kept,
        "of": len(begun),
        "points": points if longest > points else None,
        "epochs": [_numbers(e, places[run]) for e, run in zip(epochs, kept, strict=True)],
        "values": {
            name: [[_plain(_number(epoch.get(name))) for epoch in run] for run in epochs]
            for name in figures
        },
    }


def _best_and_others(
    records: Sequence[Record], runs: Sequence[int], most: int, result: str | None
) -> list[int]:
    """Of too many runs, half are the best, and half are spread evenly over the others."""
    if len(runs) <= most or result is None:
        return _spread(runs, most)

    def place(run: int) -> tuple[bool, float]:
        return records[run].state == "failed", badness(result, records[run].last.get(result))

    best_first = sorted(runs, key=place)
    half = most // 2
    return sorted(best_first[:half] + _spread(best_first[half:], most - half))


def _numbers(epochs: Sequence[dict[str, Any]], places: Sequence[int]) -> list[int] | int:
    """The epochs' numbers; only how many, if they are 1, 2, 3, …"""
    given = [epoch.get("epoch") for epoch in epochs]
    numbers = [n if isinstance(n, int) else i + 1 for n, i in zip(given, places, strict=True)]
    return len(numbers) if numbers == list(range(1, len(numbers) + 1)) else numbers


def _spread(items: Sequence[int], most: int) -> list[int]:
    """At most so many of them, evenly spread, with the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / max(1, most - 1))] for i in range(most)]


def _means(records: Sequence[Record], parameters: Sequence[str]) -> list[dict[str, Any]]:
    """Means and deviations over seeds, of the first groups if there are many."""
    return [
        {
            "parameters": {name: _plain(value) for name, value in group["parameters"].items()},
            "runs": group["runs"],
            "figures": {n: mean_text(*pair) for n, pair in group["figures"].items()},
        }
        for group in over_seeds(records, parameters)[:GROUPS]
    ]


def _importance(
    records: Sequence[Record], parameters: Sequence[str], result: str | None
) -> list[tuple[str, float]]:
    shares = importance(records, parameters, result) if result else {}
    return [(name, round(share, 4)) for name, share in shares.items()]


def _pictures(records: Sequence[Record], result: str | None) -> list[dict[str, Any]]:
    """The confusion matrices and ROC curves of the best run's last epoch."""
    having = [run for run, record in enumerate(records) if _pictures_of(record)]
    if not having:
        return []
    best = having[0]
    if result is not None:
        best = min(having, key=lambda run: badness(result, records[run].last.get(result)))
    return [{"run": best, **each} for each in _pictures_of(records[best])]


def _pictures_of(record: Record) -> list[dict[str, Any]]:
    found = []
    for name, value in record.last.items():
        if name.removeprefix("val_") == "roc" and isinstance(value, list):
            curves = [value] if _is_matrix(value) else value
            if all(_is_matrix(curve) and len(curve) == 2 for curve in curves[:CLASSES]):
                found.append({"name": name, "kind": "curves", "rows": _plain_rows(curves)})
        elif _is_matrix(value):
            found.append({"name": name, "kind": "matrix", "rows": _plain_rows(value)})
    return found


def _is_matrix(value: object) -> bool:
    """Whether it is rows of numbers, and not too many for a picture."""
    if not isinstance(value, list) or not 1 < len(value) <= CLASSES:
        return False
    lengths = {len(row) if isinstance(row, list) else 0 for row in value}
    if len(lengths) > 1 or not 1 < min(lengths) <= PLACES:
        return False
    return all(isinstance(number, (int, float)) for row in value for number in row)


def _plain_rows(value: Any) -> Any:
    return (
        [_plain_rows(each) for each in value[:PLACES]]
        if isinstance(value, list)
        else (_plain(value))
    )


def _failures(records: Sequence[Record]) -> dict[str, Any]:
    """The tracebacks, each text once, with the runs that ended with it."""
    runs: dict[str, list[int]] = {}
    for index, record in enumerate(records):
        if record.state == "failed":
            runs.setdefault(str(record.error or "It left no traceback.").strip(), []).append(index)
    most = sorted(runs.items(), key=lambda item: -len(item[1]))
    return {
        "kinds": len(most),
        "shown": [
            {
                "title": records[failed[0]].reason[:400],
                "text": error if len(error) <= ERROR_TEXT else "…" + error[-ERROR_TEXT:],
                "runs": failed,
            }
            for error, failed in most[:ERRORS]
        ],
    }


def _environment(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Where the results come from: each item with its values, the most frequent first."""
    items: dict[str, Counter[str]] = {}
    for record in records:
        git = record.git if isinstance(record.git, dict) else {}
        changed = " with uncommitted changes" if git.get("dirty") else ""
        facts = {
            "git commit": f"{git['commit']}{changed}" if git.get("commit") else None,
            "uncommitted changes": f"diffs/{git['diff']}" if git.get("diff") else None,
            "host": record.host,
            "device": device_of(record),
            "seed": record.seed,
            **(record.versions if isinstance(record.versions, dict) else {}),
        }
        for name, fact in facts.items():
            if fact is not None:
                items.setdefault(str(name), Counter())[str(fact)[:TEXT]] += 1
    return [
        {"name": name, "values": counts.most_common(8), "different": len(counts)}
        for name, counts in items.items()
    ]


def _number(value: object) -> float | int | None:
    """A figure that is a number; True counts as 1."""
    return value if isinstance(value, (int, float)) else None


def _plain(value: object) -> object:
    """As the page shows it: numbers with six digits, NaN and lists as text, long texts cut."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else strict(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= TEXT else text[: TEXT - 1] + "…"
