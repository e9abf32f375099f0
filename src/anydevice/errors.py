"""What is raised when anydevice is used in a way that cannot work; its text is one sentence."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


class UsageError(ValueError):
    """Wrong use: says what was expected, what came, and what to do. The CLI ends with code 2."""


def did_you_mean(
    name: str,
    known: Iterable[str],
    otherwise: str | None = None,
    *,
    most: int = 1,
    key: Callable[[str], str] = str.lower,
    alike: float = 0.6,
) -> str:
    """How an error about an unknown name ends: with the names most like it, else with all.

    Args:
        name: What the user wrote.
        known: The names that there are.
        otherwise: How it ends if none is like it; "known are a, b." if not given.
        most: How many names are suggested at most.
        key: How names are compared.
        alike: How similar a suggested name is at least, from 0 to 1.

    >>> did_you_mean("acuracy", ["loss", "accuracy"])
    'did you mean accuracy?'
    """
    from difflib import get_close_matches

    by_key = {key(each): each for each in known}
    holding = [each for each in by_key if key(name) in each] if name else []
    near = (
        holding if 0 < len(holding) <= most else get_close_matches(key(name), by_key, most, alike)
    )
    if near:
        *others, last = (by_key[each] for each in near)
        return f"did you mean {', '.join(others)} or {last}?" if others else f"did you mean {last}?"
    return f"known are {', '.join(by_key.values())}." if otherwise is None else otherwise


def names_checked(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """The function, with a UsageError where a call names an argument that it does not have.

    Its signature stays as it is, so that editors complete and check it.

    >>> @names_checked
    ... def train(*, epochs: int = 1): ...
    >>> train(epoch=3)
    Traceback (most recent call last):
    anydevice.errors.UsageError: expected arguments of train, got epoch: did you mean epochs?
    """
    parameters = inspect.signature(function).parameters
    known = [name for name in parameters if name != "self"]

    @functools.wraps(function)
    def checked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        if kwargs:
            for name in kwargs:
                if name not in parameters:
                    raise UsageError(_unknown_argument(function, name, known))
        return function(*args, **kwargs)

    return checked


def names_in(given: Iterable[str], *functions: Callable[..., object]) -> None:
    """Raises a UsageError for a name among the given that none of the functions has an argument of.

    >>> def train(*, epochs: int = 1, **options): ...
    >>> names_in(["epoch"], train)
    Traceback (most recent call last):
    anydevice.errors.UsageError: expected arguments of train, got epoch: did you mean epochs?
    """
    parameters = [p for f in functions for p in inspect.signature(f).parameters.values()]
    known = [p.name for p in parameters if p.kind != p.VAR_KEYWORD and p.name != "self"]
    for name in given:
        if name not in known:
            raise UsageError(_unknown_argument(functions[0], name, known))


def _unknown_argument(function: Callable[..., object], name: str, known: list[str]) -> str:
    called = function.__qualname__.removesuffix(".__init__").rpartition("<locals>.")[-1]
    # The shorter name may be meant in part only: clip for clip_norm, metric for metrics.
    begins = [each for each in known if each.startswith(name) or name.startswith(each)]
    hint = did_you_mean(name, begins or known)
    return f"expected arguments of {called}, got {name}: {hint}"
