"""Runs drawn at random: `sample(20, lr=log_uniform(1e-4, 1e-1), batch_size=[32, 64])`."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from anydevice.errors import UsageError
from anydevice.sweep.grid import Condition, Run, values_of

MOST_REDRAWN = 1000  # draws in a row that are no new run, before it gives up


@dataclass(frozen=True)
class Space:
    """Where a parameter's values are drawn from."""

    name: str
    draw: Callable[[Random], Any]
    kind: str = "choice"
    range: tuple[float, ...] = ()
    values: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return self.name


def uniform(low: float, high: float) -> Space:
    """Any number between `low` and `high`, all equally likely; for `sample`.

    Raises:
        UsageError: If `low` is not less than `high`.

    Example:
        >>> sample(1, dropout=uniform(0.0, 0.5))
        [Run(dropout=0.4222)]
    """
    _check("uniform", low, high)
    name = f"uniform({low}, {high})"
    draw = partial(_between, low, high)
    return Space(name, draw, "uniform", (low, high))


def log_uniform(low: float, high: float) -> Space:
    """A number between `low` and `high`, each power of ten equally likely; for `sample`.

    It suits learning rates and other parameters whose order of magnitude matters.

    Raises:
        UsageError: If `low` is not above 0, or not less than `high`.

    Example:
        >>> sample(1, lr=log_uniform(1e-4, 1e-1))
        [Run(lr=0.03414)]
    """
    _check("log_uniform", low, high, above=0)
    first, last = math.log(low), math.log(high)
    return Space(
        f"log_uniform({low}, {high})",
        lambda random: min(high, max(low, math.exp(first + (last - first) * random.random()))),
        "log_uniform",
        (low, high),
    )


def integers(low: int, high: int) -> Space:
    """A whole number from `low` to `high`, both included; for `sample`.

    Raises:
        UsageError: If they are not whole numbers, or `low` is not less than `high`.

    Example:
        >>> sample(1, depth=integers(2, 8))
        [Run(depth=8)]
    """
    _check("integers", low, high)
    if low != int(low) or high != int(high):
        raise UsageError(f"expected whole numbers for integers, got {low} and {high}.")
    name = f"integers({low}, {high})"
    draw = partial(_whole, int(low), int(high))
    return Space(name, draw, "integers", (low, high))


def sample(
    count: int, *, when: Condition | None = None, random_seed: int = 0, **parameters: Any
) -> list[Run]:
    """Runs with parameters drawn at random, all different.

    Args:
        count: How many runs.
        when: A condition on a run; draws for which it is false are drawn again.
        random_seed: The seed of the draws: the same seed gives the same runs.
        **parameters: For each parameter `uniform`, `log_uniform`, `integers`, or a list to choose
            from.

    Returns:
        The runs, in the order in which they were drawn.

    Raises:
        UsageError: If there are not that many different runs.

    Example:
        >>> sample(2, lr=log_uniform(1e-4, 1e-1), batch_size=[32, 64])
        [Run(lr=0.03414, batch_size=64), Run(lr=0.0001323, batch_size=64)]
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UsageError(f"expected to sample 1 or more runs, got {count!r}.")
    spaces = {name: space_of(name, given) for name, given in parameters.items()}
    if not spaces:
        raise UsageError("expected parameters such as lr=ad.log_uniform(1e-4, 1e-1), got none.")
    random, runs, misses = Random(random_seed), dict[str, Run](), 0
    while len(runs) < count:
        run = Run({name: space.draw(random) for name, space in spaces.items()})
        if run.key in runs or not (when is None or when(run)):
            misses += 1
            if misses == MOST_REDRAWN:
                raise UsageError(
                    f"expected {count} different runs{' that when= accepts' if when else ''},"
                    f" got {len(runs)} from {', '.join(f'{n}={s}' for n, s in spaces.items())}: "
                    "ask for fewer, or list them with ad.grid."
                )
            continue
        runs[run.key], misses = run, 0
    return list(runs.values())


def space_of(name: str, given: Space | Iterable[Any]) -> Space:
    """Where a parameter is drawn from: as given, or one of a list."""
    if isinstance(given, Space):
        return given
    values = values_of(name, given)
    draw = partial(_one_of, values)
    return Space(repr(values), draw, values=tuple(values))


def _between(low: float, high: float, random: Random) -> float:
    return low + (high - low) * random.random()


def _whole(low: int, high: int, random: Random) -> int:
    return random.randint(low, high)


def _one_of(values: Sequence[Any], random: Random) -> Any:
    return values[random.randrange(len(values))]


def _check(name: str, low: float, high: float, above: float = -math.inf) -> None:
    least = f"above {above} " if above > -math.inf else ""
    if not (above < low < high < math.inf):
        raise UsageError(
            f"expected two numbers {least}for {name}, the smaller first, got {low} and {high}."
        )
