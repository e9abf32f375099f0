"""A sweep as a file: the experiment's name, and the runs.

experiment = "train:experiment"    # module:function, from this folder or an installed package
folder = "runs/first"

[grid]
lr = [0.1, 0.01]
device = ["cuda", "cpu"]
"""

import importlib
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anydevice.errors import UsageError, did_you_mean
from anydevice.sweep.grid import Run, grid
from anydevice.sweep.halving import Halving, halving
from anydevice.sweep.sample import Space, integers, log_uniform, sample, uniform
from anydevice.sweep.sweep import Sweep

OPTIONS = ("workers", "gpus", "fuse", "engine")  # as Sweep.run takes them
KEYS = ("experiment", "folder", *OPTIONS, "seed", "when", "grid", "sample", "runs", "stop")
NUMBER = int | float
WHAT: dict[Any, str] = {
    str: "text",
    dict: "a table",
    list: "a list of tables",
    bool: "true or false",
    NUMBER: "a number",
}
KINDS: dict[str, Any] = {
    **dict.fromkeys(("experiment", "folder", "when"), str),
    **dict.fromkeys(("grid", "sample", "stop"), dict),
    "runs": list,
    "gpus": NUMBER,
    "fuse": bool,
}
SPACES: dict[str, Callable[..., Space]] = {
    "uniform": uniform,
    "log_uniform": log_uniform,
    "integers": integers,
}


@dataclass(frozen=True)
class FileOrder:
    """What a file asks for."""

    sweep: Sweep
    folder: Path
    options: dict[str, Any] = field(default_factory=dict)


def read_order(path: Path, folder: Path | None = None) -> FileOrder:
    """The sweep that a file describes; `folder` comes before the one that the file names."""
    entry = _toml(path)
    _refuse_strangers(path, entry)
    _refuse_other_kinds(path, entry)
    experiment = function(_needed(path, entry, "experiment"), path.parent)
    where = folder or entry.get("folder")
    if where is None:
        raise UsageError(f'expected a folder for the records, such as folder = "runs" in {path}.')
    options: dict[str, Any] = {name: entry[name] for name in OPTIONS if name in entry}
    if "stop" in entry:
        options["stop"] = _halving(path, entry["stop"])
    return FileOrder(
        Sweep(experiment, _runs(path, entry), seed=entry.get("seed", 0)), Path(where), options
    )


def function(name: object, folder: Path) -> Callable[..., Any]:
    """The function that module:function names; modules in the file's folder come first."""
    module_name, colon, attribute = str(name).partition(":")
    parts = (*module_name.split("."), *attribute.split("."))
    if not colon or not all(part.isidentifier() for part in parts):
        raise UsageError(f"expected a function as module:function, got {name!r}.")
    if str(folder.absolute()) not in sys.path:
        sys.path.insert(0, str(folder.absolute()))
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not module_name.startswith(error.name):
            raise  # the module is there, but imports one that is not
        raise UsageError(
            f"expected a module to import for {name!r}, got none with this name in "
            f"{folder.absolute()} or among the installed packages."
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            hint = did_you_mean(part, dir(found), "check its spelling.")
            raise UsageError(f"expected {part!r} in {module_name}, got a module without it: {hint}")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"expected a function of a run, got {name!r}, which is {found!r}.")
    return found  # type: ignore[no-any-return]


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        names = [file.name for file in path.parent.glob("*.toml")]
        hint = did_you_mean(path.name, names, "check the path.")
        raise UsageError(f"expected a file, got {path}, which does not exist: {hint}") from None
    except IsADirectoryError:
        raise UsageError(f"expected a file of TOML, got {path}, which is a folder.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"expected a file of TOML, got {path} ({error}).") from error


def _refuse_strangers(path: Path, entry: dict[str, Any]) -> None:
    for name in entry:
        if name not in KEYS:
            hint = did_you_mean(name, KEYS)
            raise UsageError(f"expected entries of a sweep in {path}, got {name!r}: {hint}")


def _refuse_other_kinds(path: Path, entry: dict[str, Any]) -> None:
    for name, value in entry.items():
        if name in KINDS and not isinstance(value, KINDS[name]):
            what = WHAT[KINDS[name]]
            raise UsageError(f"expected {name} as {what} in {path}, got {value!r}.")
    for number, run in enumerate(entry.get("runs", []), 1):
        if not isinstance(run, dict):
            raise UsageError(f"expected a table as run {number} in {path}, got {run!r}.")


def _needed(path: Path, entry: dict[str, Any], name: str) -> Any:
    if name not in entry:
        raise UsageError(f'expected {name} = "module:function" in {path}, got none.')
    return entry[name]


def _runs(path: Path, entry: dict[str, Any]) -> list[Any]:
    """Those of [grid], then those of [sample], then those of [[runs]]."""
    when = function(entry["when"], path.parent) if "when" in entry else None
    runs: list[Any] = []
    if "grid" in entry:
        runs += grid(when=when, **_table(path, entry, "grid"))
    if "sample" in entry:
        given = _table(path, entry, "sample")
        count, seed = given.pop("count", None), given.pop("random_seed", 0)
        if not isinstance(seed, int):
            raise UsageError(f"expected a whole number as random_seed in {path}, got {seed!r}.")
        drawn = {name: _space(value) for name, value in given.items()}
        runs += sample(count, when=when, random_seed=seed, **drawn)
    runs += [run for run in entry.get("runs", []) if when is None or when(Run(run))]
    if not runs:
        raise UsageError(f"expected [grid], [sample] or [[runs]] in {path}, got none.")
    return runs


def _table(path: Path, entry: dict[str, Any], name: str) -> dict[str, Any]:
    table = entry[name]
    if "when" in table:
        raise UsageError(f"expected when = … above [{name}] in {path}, got it inside.")
    return dict(table)


def _space(given: Any) -> Any:
    """`{log_uniform = [1e-4, 1e-1]}` as a space; a list unchanged."""
    if isinstance(given, dict) and len(given) == 1:
        (name, bounds), *_ = given.items()
        if name in SPACES and isinstance(bounds, list) and len(bounds) == 2:
            if not all(isinstance(bound, int | float) for bound in bounds):
                raise UsageError(f"expected two numbers for {name}, got {bounds!r}.")
            return SPACES[name](*bounds)
    if isinstance(given, dict):
        raise UsageError(
            f"expected a list, or {{ {' | '.join(SPACES)} = [low, high] }}, got {given!r}."
        )
    return given


def _halving(path: Path, given: Any) -> Halving:
    """`[stop]`: the arguments of ad.halving."""
    try:
        return halving(**given)
    except TypeError as error:
        raise UsageError(
            f"expected watch, first, factor and best under [stop] in {path}, got {given!r}."
        ) from error
