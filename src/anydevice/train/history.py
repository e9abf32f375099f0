"""What a trial found out: one record an epoch, shown as a table or a picture."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from anydevice.errors import UsageError, did_you_mean
from anydevice.tables import Shown, Table
from anydevice.text import UNSET, size_text

IN_A_ROW = 3  # panels of a picture
# Figures of a record that differ between two runs of the same training.
SPEED = ("samples_per_second", "peak_bytes", "seconds")
# Figures of a record that say how the training is doing, not how well the network does.
HEALTH = ("learning_rate", "grad_norm", *SPEED)


def is_health(name: str) -> bool:
    """Whether a figure of a record is one of these, such as "learning_rate/1"."""
    return name.partition("/")[0] in HEALTH


def is_shaped(figure: Any) -> bool:
    """Whether a figure is more than one number, such as a confusion matrix."""
    return isinstance(figure, (list, tuple, dict))


class History(Shown, list[dict[str, Any]]):
    """What a trial measured: a list of records, one for each epoch.

    A record has `"epoch"`, a figure for each metric, `"val_…"` for each on the validation data,
    `"learning_rate"` (one for each group of the optimizer if there are several), `"grad_norm"` (of
    the epoch's last step, before clipping), `"samples_per_second"`, `"peak_bytes"` on a GPU, and
    `"seconds"`. Printed, or shown in a notebook, the history is a table.

    Example:
        >>> history = ad.Trial(network, "adam", "mse").history
        >>> history.append({"epoch": 1, "loss": 0.5})
        >>> history[-1]["loss"]
        0.5
    """

    def table(self) -> Table:
        """The records as a table with a row for each epoch.

        Example:
            >>> table = history.table()
        """
        names = (name for record in self for name in record if not is_shaped(record[name]))
        columns = list(dict.fromkeys(names))
        rows: list[Sequence[str]] = [
            [_text(name, record.get(name)) for name in columns] for record in self
        ]
        return Table(columns, rows, right=columns)

    def plot(self, names: Sequence[str] = ()) -> Any:
        """The figures over the epochs, a panel for each with its validation.

        Needs the package matplotlib.

        Args:
            names: The figures; without them, all that were measured.

        Returns:
            The figure of matplotlib.

        Raises:
            UsageError: If matplotlib is not installed, there are no records, or a name is none of a
                number in them.

        Example:
            >>> figure = history.plot(["loss"])
        """
        measured = self._measured()
        _refuse_others(names, measured, {name for record in self for name in record})
        shown = list(names) or measured
        rows, columns = -(-len(shown) // IN_A_ROW), min(IN_A_ROW, len(shown))
        figure, panels = plotting().subplots(
            rows, columns, figsize=(4.5 * columns, 3.5 * rows), squeeze=False
        )
        for panel, name in zip_longest(panels.flat, shown):
            if name is None:
                panel.set_visible(False)
            else:
                self._draw(panel, name)
        return drawn(figure)

    def _draw(self, panel: Any, name: str) -> None:
        for line in (name, f"val_{name}"):
            points = [(r["epoch"], r[line]) for r in self if r.get(line) is not None]
            if points:
                panel.plot(*zip(*points, strict=True), marker="o", label=line)
        panel.set_xlabel("epoch")
        panel.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        panel.legend()

    def _measured(self) -> list[str]:
        aside = ("epoch", "skipped")
        names = (n for r in self for n in r if not (n in aside or is_health(n) or is_shaped(r[n])))
        return list(dict.fromkeys(name.removeprefix("val_") for name in names))

    def _shown(self) -> Iterator[Table]:
        yield self.table()

    __repr__ = list.__repr__


def plotting() -> Any:
    """matplotlib's pyplot."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise UsageError(
            "expected the package matplotlib for a plot, got none: pip install matplotlib."
        ) from error
    return pyplot


def drawn(figure: Any) -> Any:
    """The figure, laid out; a notebook shows it once, as what the cell returns."""
    figure.set_layout_engine("constrained")
    pyplot = plotting()
    if "inline" in pyplot.get_backend():  # which would show each that is open once more
        pyplot.close(figure)
    return figure


def _refuse_others(names: Any, measured: Sequence[str], there: set[str]) -> None:
    if isinstance(names, str):
        raise UsageError(f"expected names as a list, got {names!r}: write plot([{names!r}]).")
    if not measured:
        raise UsageError("expected records to plot, got none: run the trial first.")
    for name in names:
        if name not in there | set(measured):
            hint = did_you_mean(name, measured)
            raise UsageError(f"expected names of figures in the records, got {name!r}: {hint}")
        if name not in measured and not is_health(name):
            raise UsageError(
                f"expected names of figures that are one number, got {name!r}: a sweep's report "
                "draws it, and trial.confusion().plot() a confusion matrix."
            )


def _text(name: str, figure: Any) -> str:
    if figure is None:
        return UNSET
    if name == "peak_bytes":
        return size_text(figure)
    if isinstance(figure, float) and 1e4 <= abs(figure) < 1e9:
        return f"{figure:,.0f}"
    return f"{figure:.4g}" if isinstance(figure, float) else str(figure)
