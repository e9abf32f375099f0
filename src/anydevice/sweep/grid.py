"""The runs of a sweep: every combination of parameters, or those that are listed."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

from anydevice.errors import UsageError, did_you_mean
from anydevice.sweep import jsonable

RESERVED = ("epoch", "folder", "key", "parameters", "run")
Condition = Callable[["Run"], bool]


class Run:
    """The parameters of one run, as attributes: `run.lr`. A run cannot be changed.

    Attributes:
        parameters: All of them as a dictionary, in their order.
        key: The run's name on disk, the same for the same parameters.
        seed: The seed of torch, numpy and random: the parameter `seed`, or else the sweep's.
        folder: The run's own folder inside a sweep, for checkpoints and other files.

    Example:
        >>> run = Run({"lr": 0.1, "device": "cpu"})
        >>> run.lr, run["device"]
        (0.1, 'cpu')
    """

    __slots__ = ("_folder", "_parameters", "_seed", "key")
    key: str

    def __init__(
        self, parameters: Mapping[str, Any], *, seed: int = 0, folder: Path | None = None
    ) -> None:
        kept = {_name(name): jsonable.parameter(name, value) for name, value in parameters.items()}
        given = kept.get("seed")
        for name, value in (
            ("_parameters", kept),
            ("_seed", given if isinstance(given, int) else seed),
            ("_folder", folder),
            ("key", key_of(kept)),
        ):
            object.__setattr__(self, name, value)

    @property
    def parameters(self) -> dict[str, Any]:
        """All of them, in their order."""
        return dict(self._parameters)

    @property
    def seed(self) -> int:
        """The seed of torch, numpy and random: the parameter `seed`, or else the sweep's."""
        seed: int = self._seed
        return seed

    @property
    def folder(self) -> Path:
        """The run's own folder, inside a sweep."""
        if self._folder is None:
            raise UsageError("expected a run inside a sweep, got one that has no folder yet.")
        folder: Path = self._folder
        return folder

    def inside(self, folder: Path | None, seed: int) -> "Run":
        """The same run as a sweep gives it to an experiment."""
        return Run(self._parameters, seed=seed, folder=folder)

    def __getattr__(self, name: str) -> Any:
        if name in Run.__slots__:  # not there yet: being copied
            raise AttributeError(name)
        if name in self._parameters:
            return self._parameters[name]
        hint = did_you_mean(name, self._parameters, f"it has {', '.join(self._parameters)}.")
        raise AttributeError(f"this run has no parameter {name!r}: {hint}", name=name)

    def __getitem__(self, name: str) -> Any:
        return self._parameters[name]

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(
            f"a run cannot be changed: make another one with the value of {name} that you want."
        )

    __delattr__ = __setattr__  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (self._parameters, self._seed, self._folder)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._parameters]

    def __str__(self) -> str:
        return ", ".join(f"{name}={_short(value)}" for name, value in self._parameters.items())

    def __repr__(self) -> str:
        return f"Run({self})"


def grid(*, when: Condition | None = None, **parameters: Iterable[Any]) -> list[Run]:
    """Every combination of the values, in the order given.

    Args:
        when: A condition on a run; combinations for which it is false are left out.
        **parameters: For each parameter a list of its values: numbers, text, true or false, lists
            or dictionaries.

    Returns:
        The runs; the last parameter varies fastest.

    Raises:
        UsageError: If a parameter has no values, or `when` leaves nothing.

    Example:
        >>> grid(lr=[0.1, 0.01], device=["cuda", "cpu"])[1]
        Run(lr=0.1, device=cpu)
        >>> len(grid(depth=[1, 2, 3], width=[8, 16], when=lambda run: run.depth * run.width < 40))
        5
    """
    values = {name: values_of(name, given) for name, given in parameters.items()}
    if not values:
        raise UsageError("expected parameters such as lr=[0.1, 0.01], got none.")
    combinations = (dict(zip(values, row, strict=True)) for row in product(*values.values()))
    runs = [run for run in map(Run, combinations) if when is None or when(run)]
    if not runs:
        raise UsageError(
            "expected a grid of one run or more, got none: when= leaves all of them out."
        )
    return runs


def runs_of(given: Iterable[Run | Mapping[str, Any]]) -> tuple[Run, ...]:
    """A sweep's runs: those of a grid, dictionaries of parameters, or both; each once."""
    if isinstance(given, (str, Mapping)):
        raise UsageError(f"expected a list of runs, such as ad.grid(lr=[0.1]), got {given!r}.")
    runs = tuple(run if isinstance(run, Run) else Run(_mapping(run)) for run in given)
    if not runs:
        raise UsageError("expected one run or more, got none: an empty list of runs.")
    first: dict[str, int] = {}
    for number, run in enumerate(runs, 1):
        if run.key in first:
            raise UsageError(
                f"expected runs that differ, got ({run}) twice, as run {first[run.key]} and run "
                f"{number}: leave one out, or add a parameter such as seed=[0, 1]."
            )
        first[run.key] = number
    return runs


def names_of(runs: Sequence[Run]) -> list[str]:
    """The parameters of all runs, in the order in which they first appear."""
    return list(dict.fromkeys(name for run in runs for name in run._parameters))


def key_of(parameters: Mapping[str, Any]) -> str:
    """A run's name on disk: the same for the same parameters in any order."""
    text = json.dumps(parameters, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def values_of(name: str, given: Iterable[Any]) -> list[Any]:
    """The values listed for a parameter."""
    if isinstance(given, (str, bytes, Mapping, set, frozenset)) or not isinstance(given, Iterable):
        wrong = "a set, which has no order," if isinstance(given, (set, frozenset)) else repr(given)
        raise UsageError(f"expected a list of values for {name}, got {wrong}: put it in [ ].")
    values = list(given)
    if not values:
        raise UsageError(f"expected one value or more for {name}, got an empty list.")
    return values


def _name(name: object) -> str:
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
        raise UsageError(f"expected names such as batch_size for parameters, got {name!r}.")
    if name in RESERVED:
        raise UsageError(
            f"expected another name than {name!r} for a parameter: records use that one already."
        )
    return name


def _mapping(given: object) -> Mapping[str, Any]:
    if not isinstance(given, Mapping) or not given:
        raise UsageError(f"expected a run as a dictionary of its parameters, got {given!r}.")
    return given


def _made_again(parameters: dict[str, Any], seed: int, folder: Path | None) -> Run:
    return Run(parameters, seed=seed, folder=folder)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
