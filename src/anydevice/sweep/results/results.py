"""The results of a sweep: its records as a table, CSV, JSON, pandas, polars, TensorBoard."""

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, overload

from rich.console import Group, RenderableType
from rich.text import Text

from anydevice.errors import UsageError, did_you_mean
from anydevice.files import write_whole
from anydevice.sweep.grid import Run
from anydevice.sweep.jsonable import is_number, strict
from anydevice.sweep.ranking import badness, compared_by, more_is_better
from anydevice.sweep.records.claims import is_claimed
from anydevice.sweep.records.notes import Notes, read_notes, write_notes
from anydevice.sweep.records.records import SWEEP, Damaged, Record, read_all, read_sheet
from anydevice.sweep.results import comparing
from anydevice.tables import Shown, Table, printable
from anydevice.text import UNSET, duration_text
from anydevice.train.history import is_health, is_shaped

EPOCH_DURATION, RUN_DURATION, RAN_ON = "epoch duration", "run duration", "ran on"
LEADING = ("loss", "accuracy")
BEST = "*"
Row = dict[str, Any]


@dataclass(frozen=True, repr=False)
class Results(Shown, Sequence[Record]):
    """The results of a sweep: a sequence of its records, which shows itself as a table.

    Attributes:
        folder: The folder of the sweep.
        records: A `Record` for each run, in the sweep's order.
        damaged: The records that cannot be read, and why.
        parameters: The names of the parameters.

    Example:
        >>> import anydevice as ad
        >>> sweep = ad.Sweep(None, ad.grid(lr=[0.1, 0.01]))
        >>> for run in sweep.left("runs/first"):
        ...     with sweep.track(run, "runs/first") as t:
        ...         t.epoch(loss=run.lr)
        >>> results = ad.Results.of("runs/first")
        >>> [record.state for record in results]
        ['done', 'done']
        >>> [row["loss"] for row in results.rows(sort="-loss")]
        [0.1, 0.01]
    """

    folder: Path
    records: list[Record]
    damaged: list[Damaged]
    parameters: list[str]

    @classmethod
    def of(cls, folder: str | Path) -> "Results":
        """The results that a sweep's folder has by now.

        Args:
            folder: The folder of a sweep, which may still be at work.

        Raises:
            UsageError: If it is not the folder of a sweep.
        """
        folder = Path(folder)
        records, damaged = read_all(folder)
        known = [] if folder / SWEEP in {d.path for d in damaged} else read_sheet(folder).parameters
        names = dict.fromkeys([*known, *(name for r in records for name in r.parameters)])
        return cls(folder, records, damaged, list(names))

    def only(self, runs: Iterable[Run]) -> "Results":
        """The results of these runs alone, in their order."""
        of = {record.key: record for record in self.records}
        keys = [run.key for run in runs]
        damaged = [d for d in self.damaged if d.path.parent.name in keys]
        return Results(self.folder, [of[k] for k in keys if k in of], damaged, self.parameters)

    # ---- one by one ----

    @overload
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> list[Record]: ...
    def __getitem__(self, place: int | slice) -> Record | list[Record]:
        return self.records[place]

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    @property
    def failed(self) -> list[Record]:
        """The runs that failed; each has its `error`."""
        return [record for record in self.records if record.state == "failed"]

    @property
    def complete(self) -> bool:
        """Whether every run is done or was stopped early, and every record can be read."""
        ended = all(record.state in ("done", "stopped") for record in self.records)
        return ended and not self.damaged

    def best(self, by: str | None = None) -> Record:
        """The run whose last epoch has the best value of a figure.

        Args:
            by: The figure. Default: the one that the table judges by, such as the accuracy.

        Raises:
            UsageError: If no run has the figure.
        """
        name = self._figure(by)
        ended = [record for record in self.records if name in record.last]
        if not ended:
            raise UsageError(
                f"expected runs with figures in {self.folder}, got {self._why_no_figures()}."
            )
        return min(ended, key=lambda record: badness(name, record.last[name]))

    # ---- all of them ----

    @cached_property
    def figures(self) -> list[str]:
        """The names of what was measured, in the order of the table."""
        epochs = [epoch for record in self.records for epoch in record.epochs]
        seen = dict.fromkeys(n for epoch in epochs for n in epoch if not is_shaped(epoch[n]))
        leading = [name for name in LEADING if name in seen]
        return [*leading, *(n for n in seen if n not in (*LEADING, "epoch", "seconds"))]

    def rows(self, sort: str | None = None, *, every_epoch: bool = False) -> list[Row]:
        """A dictionary for each run, with its epoch, figures, durations and parameters.

        Args:
            sort: The column to sort by: the best first, or the lowest where none is better.
                `sort="-lr"` reverses the order.
            every_epoch: Whether to give a dictionary for each epoch instead.

        Raises:
            UsageError: If there is no such column.
        """
        places = {record.key: number for number, record in enumerate(self.records, 1)}
        states = self._states()
        rows = [
            self._row(places[record.key], states.get(record.key), record, epoch)
            for record in self.records
            for epoch in (record.epochs if every_epoch else [_whole(record)])
        ]
        if not every_epoch:  # how each training did stays out of what compares them
            rows = [{n: value for n, value in row.items() if not self._is_aside(n)} for row in rows]
        return rows if sort is None else self._sorted(rows, sort)

    def table(self, sort: str | None = None, *, every_epoch: bool = False) -> Table:
        """The rows as a table for a terminal or notebook; a * marks the best on each device."""
        return tabled(self.rows(sort, every_epoch=every_epoch), self._judged(sort))

    def over_seeds(self, sort: str | None = None) -> Table:
        """Means and standard deviations of the runs that differ in the parameter `seed` alone.

        Args:
            sort: A figure to sort by, the best first.

        Raises:
            UsageError: If no two runs that are done differ in the seed alone.
        """
        groups = comparing.over_seeds(self.records, self.parameters)
        if not groups:
            raise UsageError(
                "expected runs that differ in the parameter seed alone, got none: add seed=[0, 1] "
                "to the grid."
            )
        return comparing.seeds_table(groups, sort or self._judged(None))

    def importance(self, by: str | None = None) -> dict[str, float]:
        """The share of a figure's variance that each parameter explains by itself, largest first.

        Effects that parameters have only together are not counted, so that the shares add up to
        one or less.

        Args:
            by: The figure. Default: the one that the table judges by.

        Raises:
            UsageError: If no run has the figure.
        """
        return comparing.importance(self.records, self.parameters, self._figure(by))

    def compare(self, *runs: int | str) -> Table:
        """Some runs side by side: parameters, figures, durations, devices, versions.

        Args:
            runs: Their numbers in the table, their keys, or the names they were given.

        Raises:
            UsageError: If there are fewer than two, or one is not known.
        """
        if len(runs) < 2:
            raise UsageError(f"expected two runs or more to compare, got {len(runs)}.")
        records = comparing.chosen(self.records, runs, self._names)
        numbers = {record.key: number for number, record in enumerate(self.records, 1)}
        titled = [(self._names.get(r.key) or f"run {numbers[r.key]}", r) for r in records]
        return comparing.side_by_side(titled)

    def annotate(
        self,
        run: int | str,
        *,
        name: str | None = None,
        tags: Sequence[str] | None = None,
        note: str | None = None,
    ) -> Notes:
        """Gives a run a name, tags or a note, which are kept in its folder.

        Args:
            run: Its number in the table, its key or its name.
            name: A name; `""` removes it.
            tags: Its tags from now on.
            note: Any text.

        Returns:
            What is kept of the run now.

        Raises:
            UsageError: If the run is not known, the name is another run's, or a text is too long.
        """
        (record,) = comparing.chosen(self.records, [run], self._names)
        if isinstance(tags, str):
            raise UsageError(f"expected tags as a list, got {tags!r}: write tags=[{tags!r}].")
        if name and any(n == name and k != record.key for k, n in self._names.items()):
            raise UsageError(f"expected a name that no other run has, got {name!r}.")
        given = {"name": name, "tags": None if tags is None else list(tags), "note": note}
        changes = {what: value for what, value in given.items() if value is not None}
        notes = replace(read_notes(self.folder, record.key), **changes)  # type: ignore[arg-type]
        write_notes(self.folder, record.key, notes)
        self.__dict__.pop("notes", None)
        return notes

    @cached_property
    def notes(self) -> dict[str, Notes]:
        """The names, tags and notes of the runs that have some, by the runs' keys."""
        found = {record.key: read_notes(self.folder, record.key) for record in self.records}
        return {key: notes for key, notes in found.items() if notes != Notes()}

    @property
    def _names(self) -> dict[str, str]:
        return {key: notes.name for key, notes in self.notes.items() if notes.name}

    def to_json(self) -> str:
        """All records for a program, as JSON."""
        everything = {
            "folder": str(self.folder),
            "parameters": self.parameters,
            "runs": [vars(record) for record in self.records],
            "damaged": [{"path": str(d.path), "reason": d.reason} for d in self.damaged],
        }
        return json.dumps(strict(everything), indent=2, ensure_ascii=False)

    def to_csv(self, path: str | Path) -> Path:
        """Writes a CSV file with a line for each epoch, and returns its path."""
        rows = self.rows(every_epoch=True)
        page = io.StringIO(newline="")
        writer = csv.DictWriter(page, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
        write_whole(Path(path), page.getvalue().encode())
        return Path(path)

    def to_pandas(self, *, every_epoch: bool = False) -> Any:
        """A pandas.DataFrame of the rows."""
        return needed("pandas").DataFrame(self.rows(every_epoch=every_epoch))

    def to_polars(self, *, every_epoch: bool = False) -> Any:
        """A polars.DataFrame of the rows."""
        rows = self.rows(every_epoch=every_epoch)
        return needed("polars").DataFrame(rows, infer_schema_length=None, strict=False)

    def to_tensorboard(self, folder: str | Path) -> Path:
        """Writes each run for TensorBoard, with its hyperparameters, and returns the folder."""
        from anydevice.sweep.results.tensorboard import write_runs

        return write_runs(self.records, self.figures, Path(folder))

    def report(self, path: str | Path | None = None) -> Path:
        """Writes the report, an HTML page; by default report.html in the folder."""
        from anydevice.sweep.page.page import report

        return report(self.folder, path)

    # ---- how ----

    def _row(self, number: int, state: str | None, record: Record, epoch: Row) -> Row:
        row: Row = {"run": number}
        notes = self.notes.get(record.key, Notes())
        if self._names:
            row["name"] = notes.name or None
        if any(each.tags for each in self.notes.values()):
            row["tags"] = ", ".join(notes.tags) or None
        row |= {**({"state": state} if state else {}), "epoch": epoch.get("epoch")}
        row |= {self._column(name): epoch.get(name) for name in self.figures}
        row[EPOCH_DURATION], row[RUN_DURATION] = epoch.get("seconds"), record.seconds
        if any(each.virtual for each in self.records):  # these are no GPU's durations
            row[RAN_ON] = f"{record.device} (virtual)" if record.virtual else record.device
        for name in self.parameters:  # one with the name of a figure gets a column as well
            row[f"{name} (given)" if name in row else name] = record.parameters.get(name)
        return row

    def _column(self, name: str) -> str:
        """A rate that was given has its own name, and the one that a trial measured another."""
        aside = name in self.parameters and self._is_aside(f"{name} (measured)")
        return f"{name} (measured)" if aside else name

    def _is_aside(self, column: str) -> bool:
        """Whether a column is how a trial was doing, such as its learning rate."""
        name = column.removesuffix(" (measured)")
        measured = name in self.figures and (column != name or name not in self.parameters)
        return measured and is_health(name) and "grad_norm" in self.figures

    def _states(self) -> dict[str, str]:
        """The states of runs, where not all are done; a run that no process has was interrupted."""
        if all(record.state == "done" for record in self.records):
            return {}
        states = {record.key: record.state for record in self.records}
        for key in (key for key, state in states.items() if state == "running"):
            states[key] = "running" if is_claimed(self.folder, key) else "interrupted"
        return states

    def _judged(self, sort: str | None) -> str | None:
        by = sort.removeprefix("-") if sort else None
        if by in self.figures:
            return by
        numbers = {name for r in self.records for name, v in r.last.items() if is_number(v)}
        return compared_by(name for name in self.figures if name in numbers)

    def judged(self, by: str | None = None) -> str:
        """The figure by which runs are compared: this one, or else the usual one.

        Raises:
            UsageError: If no run has the figure.
        """
        return self._figure(by)

    def _figure(self, by: str | None) -> str:
        name = by or self._judged(None)
        if not self.figures:
            raise UsageError(f"expected runs with figures, got {self._why_no_figures()}.")
        if name is None or name not in self.figures:
            hint = did_you_mean(str(name), self.figures)
            raise UsageError(f"expected a figure, got {by!r}: {hint}")
        return name

    def _why_no_figures(self) -> str:
        if failed := self.failed:
            reason = printable(failed[0].reason)
            which = "all" if len(failed) == len(self.records) else "the others have none yet, and"
            return f"{which} {len(failed)} failed, the first with: {reason}".rstrip(".")
        return "none yet" if self.records else "no runs"

    def _sorted(self, rows: list[Row], sort: str) -> list[Row]:
        name = sort.removeprefix("-")
        columns = list(dict.fromkeys(name for row in rows for name in row))
        if name not in columns and not self.figures:
            return rows  # nothing is measured yet, or every run failed
        if name not in columns:
            hint = did_you_mean(name, columns)
            raise UsageError(f"expected a column to sort by, got {name!r}: {hint}")
        better = name in self.figures and more_is_better(name)
        there = [row for row in rows if not _is_missing(row[name])]
        missing = [row for row in rows if _is_missing(row[name])]
        there.sort(key=lambda row: _rank(row[name]), reverse=better != sort.startswith("-"))
        return there + missing

    def shown(self, sort: str | None = None, *, every_epoch: bool = False) -> RenderableType:
        """The table, with what it does not say below."""
        table = self.table(sort, every_epoch=every_epoch)
        return Group(table, *self._means(), *map(Text, self._not_in_table()))

    def _shown(self) -> Iterator[Table | Text]:
        yield self.table()
        yield from self._means()
        yield from map(Text, self._not_in_table())

    def _means(self) -> list[Table]:
        """Means over seeds, where there are some."""
        groups = comparing.over_seeds(self.records, self.parameters)
        return [comparing.seeds_table(groups, self._judged(None))] if groups else []

    def _not_in_table(self) -> list[str]:
        """Why runs failed, and what is damaged: the table does not say."""
        failed = ((n, r) for n, r in enumerate(self, 1) if r.state == "failed")
        lines = [f"run {number} failed: {record.reason}" for number, record in failed]
        return [printable(line) for line in (*lines, *map(str, self.damaged))]


def _whole(record: Record) -> Row:
    """The last epoch's figures, with the median of all epochs' durations."""
    durations = [epoch["seconds"] for epoch in record.epochs if is_number(epoch.get("seconds"))]
    return {**record.last, "seconds": median(durations)} if durations else record.last


def tabled(rows: list[Row], judged: str | None) -> Table:
    """Rows as a table; a * marks the best on each device by the figure `judged`."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    best = _best_of_each_device(rows, judged) if judged else set()
    right = [c for c in columns if any(isinstance(row.get(c), (int, float)) for row in rows)]
    cells = [
        [_text(column, row.get(column)) + (mark if column == judged else "") for column in columns]
        for place, row in enumerate(rows)
        for mark in [BEST if place in best else ""]
    ]
    return Table(columns, list(cells), right=right)


def needed(package: str) -> Any:
    """An optional package; a UsageError says how to install it."""
    try:
        return import_module(package)
    except ImportError as error:
        sentence = f"expected the package {package}, got none: pip install {package}."
        raise UsageError(sentence) from error


def _best_of_each_device(rows: list[Row], judged: str) -> set[int]:
    best: dict[Any, int] = {}
    for place, row in enumerate(rows):
        device, own = str(row.get("device")), badness(judged, row.get(judged))
        other = best.get(device)
        if own < math.inf and (other is None or own < badness(judged, rows[other][judged])):
            best[device] = place
    return set(best.values())


def _text(column: str, value: Any) -> str:
    if value is None:
        return UNSET
    if column in (EPOCH_DURATION, RUN_DURATION) and is_number(value):
        return duration_text(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _rank(value: Any) -> tuple[bool, Any]:
    """Numbers before text, each in its order."""
    number = isinstance(value, (int, float))
    return (not number, value if number else str(value))
