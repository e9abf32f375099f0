"""Runs that are suggested one after the other, by what earlier ones have found: with Optuna.

Note [A sweep that suggests]
----------------------------
The records on the disk are all that is known. Before each round the finished ones are given to a
new study of Optuna, which then suggests as many runs as can run at a time; the round is a sweep
like any other, in the same folder. So a sweep that was killed continues as if it had not been: a
run that was cut off is done again, and then suggestions continue.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from anydevice.errors import UsageError
from anydevice.sweep.grid import Run
from anydevice.sweep.halving import Halving
from anydevice.sweep.jsonable import is_number
from anydevice.sweep.ranking import badness, more_is_better
from anydevice.sweep.records.records import SWEEP, Record
from anydevice.sweep.results.results import Results, needed
from anydevice.sweep.sample import Space, space_of

if TYPE_CHECKING:
    from anydevice.sweep.sweep import Sweep


@dataclass(frozen=True)
class Suggestions:
    """What `suggest` gives: how many runs, where from, and towards which goal."""

    count: int
    goal: str
    more: bool
    spaces: dict[str, Space]
    sampler: Any
    pruner: Any
    seed: int

    def next(self, records: Sequence[Record], number: int) -> list[Run]:
        """So many runs that are none of those before."""
        optuna = needed("optuna")
        study = self._study(optuna, records, number)
        known = {record.key for record in records}
        found: dict[str, Run] = {}
        draws = Random(f"{self.seed} {len(records)}")
        for _ in range(100 * number):
            trial = study.ask(self._distributions(optuna))
            run = Run(trial.params)
            if run.key in known or run.key in found:  # a sampler may repeat itself
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                run = Run({name: space.draw(draws) for name, space in self.spaces.items()})
            if run.key not in known and run.key not in found:
                found[run.key] = run
            if len(found) == number:
                break
        return list(found.values())

    def stop(self) -> "Pruning | None":
        """What stops weak runs early."""
        if self.pruner is None:
            return None
        return Pruning(self.goal, 1, 2, self.more, pruner=self.pruner)

    def _study(self, optuna: Any, records: Sequence[Record], number: int) -> Any:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        how = {"seed": self.seed + len(records)}
        sampler = self.sampler or optuna.samplers.TPESampler(constant_liar=number > 1, **how)
        study = optuna.create_study(sampler=sampler, direction=_direction(self.more))
        for record in records:
            if record.finished and set(record.parameters) == set(self.spaces):
                study.add_trial(self._told(optuna, record))
        return study

    def _told(self, optuna: Any, record: Record) -> Any:
        figure = record.last.get(self.goal)
        state = (
            optuna.trial.TrialState.COMPLETE
            if is_number(figure) and figure == figure
            else (optuna.trial.TrialState.FAIL)
        )
        return optuna.trial.create_trial(
            params=record.parameters,
            distributions=self._distributions(optuna),
            value=figure if state == optuna.trial.TrialState.COMPLETE else None,
            state=state,
        )

    def _distributions(self, optuna: Any) -> dict[str, Any]:
        return {name: _distribution(optuna, space) for name, space in self.spaces.items()}


@dataclass
class Pruning(Halving):
    """Stops runs that a pruner of Optuna would prune, after 1, 2, 4, 8, … epochs."""

    pruner: Any = None
    reported: dict[str, dict[int, float]] = field(default_factory=dict)

    def afresh(self) -> "Pruning":
        """The same, which knows of no run yet."""
        return replace(self, rungs={}, reported={})

    def judge(self, key: str, epoch: int, figure: Any) -> bool:
        """Whether this run continues, compared with what the others have reported."""
        value = -badness(self.watch, figure, self.more)
        own = self.reported.setdefault(key, {})
        if not is_number(figure) or figure != figure:
            return False
        own[epoch] = value
        optuna = needed("optuna")
        study = optuna.create_study(pruner=self.pruner, direction="maximize")
        for other, values in self.reported.items():
            if other != key and values:
                study.add_trial(
                    optuna.trial.create_trial(
                        value=values[max(values)],
                        intermediate_values=values,
                        state=optuna.trial.TrialState.COMPLETE,
                    )
                )
        trial = study.ask()
        for at, reached in own.items():
            trial.report(reached, at)
        return not trial.should_prune()

    def learn(self, key: str, epochs: Sequence[dict[str, Any]]) -> None:
        """Takes in what a run of an earlier round has reached."""
        figures = ((n, e.get(self.watch)) for n, e in enumerate(epochs, 1) if self.is_rung(n))
        known = {n: -badness(self.watch, f, self.more) for n, f in figures if is_number(f)}
        self.reported[key] = {epoch: value for epoch, value in known.items() if value == value}


def suggest(
    count: int,
    goal: str = "val_loss",
    *,
    best: str | None = None,
    sampler: Any = None,
    pruner: Any = None,
    random_seed: int = 0,
    **parameters: Any,
) -> Suggestions:
    """Runs for a `Sweep` that Optuna suggests by what earlier runs have found.

    Needs the package optuna: `pip install 'anydevice[optuna]'`.

    Args:
        count: How many runs.
        goal: The figure of the last epoch to improve.
        best: "min" or "max". Default: by the name of the figure, "max" for an accuracy.
        sampler: A sampler of Optuna. Default: its TPESampler.
        pruner: A pruner of Optuna that stops weak runs early, such as `optuna.pruners.
            MedianPruner()`. It is asked after 1, 2, 4, 8, … epochs.
        random_seed: The seed of the default sampler.
        **parameters: For each parameter `uniform`, `log_uniform`, `integers`, or a list to choose
            from.

    Returns:
        What `Sweep` takes in place of a list of runs.

    Raises:
        UsageError: If there are no parameters, or a value is out of range.

    Example:
        >>> space = ad.suggest(20, "loss", lr=ad.log_uniform(1e-4, 1e-1), depth=[2, 4])
        >>> space.count
        20
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UsageError(f"expected 1 or more runs to suggest, got {count!r}.")
    if not isinstance(goal, str) or best not in (None, "min", "max"):
        raise UsageError(
            "expected the name of a figure as the goal, and best as 'min' or 'max', got "
            f"{goal!r} and {best!r}."
        )
    if not parameters:
        raise UsageError("expected parameters such as lr=ad.log_uniform(1e-4, 1e-1), got none.")
    more = more_is_better(goal) if best is None else best == "max"
    spaces = {name: space_of(name, given) for name, given in parameters.items()}
    Run({name: space.draw(Random(0)) for name, space in spaces.items()})  # refuses odd names
    return Suggestions(count, goal, more, spaces, sampler, pruner, random_seed)


def do(sweep: "Sweep", suggestions: Suggestions, folder: Path, number: int, **how: Any) -> Results:
    """Does the runs of a sweep that suggests them, so many at a time."""
    needed("optuna")
    how["stop"] = how.get("stop") or suggestions.stop()
    while True:
        known = Results.of(folder).records if (folder / SWEEP).exists() else []
        if how.pop("retry_failed", False):
            _done(sweep, known, folder, retry_failed=True, **how)
            known = Results.of(folder).records
        if unfinished := [record for record in known if not record.finished]:
            _done(sweep, unfinished, folder, **how)
            known = Results.of(folder).records
        missing = suggestions.count - len(known)
        batch = suggestions.next(known, min(number, missing)) if missing > 0 else []
        if not batch:
            return Results.of(folder)
        _done(sweep, batch, folder, **how)


def _done(sweep: "Sweep", which: Iterable[Record | Run], folder: Path, **how: Any) -> None:
    runs = [each if isinstance(each, Run) else Run(each.parameters) for each in which]
    if runs:
        type(sweep)(sweep.experiment, runs, seed=sweep.seed).run(folder, **how)


def _direction(more: bool) -> str:
    return "maximize" if more else "minimize"


def _distribution(optuna: Any, space: Space) -> Any:
    kinds: dict[str, Callable[[], Any]] = {
        "uniform": lambda: optuna.distributions.FloatDistribution(*space.range),
        "log_uniform": lambda: optuna.distributions.FloatDistribution(*space.range, log=True),
        "integers": lambda: optuna.distributions.IntDistribution(*map(int, space.range)),
        "choice": lambda: optuna.distributions.CategoricalDistribution(space.values),
    }
    return kinds[space.kind]()
