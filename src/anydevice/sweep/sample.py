"""Runs drawn at random: `sample(20, lr=log_uniform(1e-4, 1e-1), batch_size=[32, 64])`."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from anydevice.errors import UsageError
from anydevice.sweep.grid import Condition, Run, values_of

MOST_REDRAWN = 1000  # draws in a row that are there already, before one gives up


@dataclass(frozen=True)
class Space:
    """Where a parameter's values are drawn from."""

    name: str
    draw: Callable[[Random], Any]

    def __repr__(self) -> str:
        return self.name


def uniform(low: float, high: float) -> Space:
    """Any number between the two, all alike."""
    _check("uniform", low, high)
    return Space(f"uniform({low}, {high})", lambda random: low + (high - low) * random.random())


def log_uniform(low: float, high: float) -> Space:
    """A number between the two, each power of ten alike: for learning rates and the like."""
    _check("log_uniform", low, high, above=0)
    first, last = math.log(low), math.log(high)
    return Space(
        f"log_uniform({low}, {high})",
        lambda random: min(high, max(low, math.exp(first + (last - first) * random.random()))),
    )


def integers(low: int, high: int) -> Space:
    """A whole number from `low` to `high`, both among them."""
    _check("integers", low, high)
    if low != int(low) or high != int(high):
        raise UsageError(f"expected whole numbers for integers, got {low} and {high}.")
    return Space(f"integers({low}, {high})", lambda random: random.randint(int(low), int(high)))


def sample(
    count: int, *, when: Condition | None = None, random_seed: int = 0, **parameters: Any
) -> list[Run]:
    """So many runs that differ; a list is a choice. The same `random_seed` gives the same runs.

    >>> sample(2, lr=log_uniform(1e-4, 1e-1), batch_size=[32, 64])
    [Run(lr=0.03422, batch_size=64), Run(lr=0.001823, batch_size=32)]
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UsageError(f"expected to sample 1 or more runs, got {count!r}.")
    spaces = {name: _space(name, given) for name, given in parameters.items()}
    if not spaces:
        raise UsageError("expected parameters such as lr=ad.log_uniform(1e-4, 1e-1), got none.")
    random, runs, misses = Random(random_seed), dict[str, Run](), 0
    while len(runs) < count:
        run = Run({name: space.draw(random) for name, space in spaces.items()})
        if run.key in runs or not (when is None or when(run)):
            misses += 1
            if misses == MOST_REDRAWN:
                raise UsageError(
                    f"expected {count} runs that differ{' and that when= lets in' if when else ''},"
                    f" got {len(runs)} from {', '.join(f'{n}={s}' for n, s in spaces.items())}: "
                    "ask for fewer, or list them with ad.grid."
                )
            continue
        runs[run.key], misses = run, 0
    return list(runs.values())


def _space(name: str, given: Space | Iterable[Any]) -> Space:
    if isinstance(given, Space):
        return given
    values = values_of(name, given)
    return Space(repr(values), lambda random: values[random.randrange(len(values))])


def _check(name: str, low: float, high: float, above: float = -math.inf) -> None:
    least = f"above {above} " if above > -math.inf else ""
    if not (above < low < high < math.inf):
        raise UsageError(
            f"expected two numbers {least}for {name}, the lesser first, got {low} and {high}."
        )
