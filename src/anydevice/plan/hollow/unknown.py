"""Numbers that nobody knows, and what Python computes from them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any, Protocol

import torch
from torch.compiler import is_compiling

# Dynamo traces these functions, since they stand for some of `math` and of torch that it knows.

ARITHMETIC = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
    *("radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rpow"),
)
ALONE = ("neg", "pos", "abs", "round", "floor", "ceil", "trunc")
COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")
OF_MATH = (
    *("log", "log2", "log10", "log1p", "exp", "expm1", "sqrt", "pow", "fmod", "fabs", "floor"),
    *("ceil", "trunc", "sin", "cos", "tan", "tanh", "atan", "isnan", "isinf", "isfinite"),
)


class Decides(Protocol):
    """Knows the truth of an unknown number for a frame that asks."""

    def truth(self, frame: FrameType, zero: bool, *, differs: bool | None = None) -> bool:
        """The truth, which is `zero` for the number zero."""


deciding: list[Decides] = []  # the last one does


def _asked(frame: FrameType, zero: bool, differs: bool | None = None) -> bool:
    return deciding[-1].truth(frame, zero, differs=differs) if deciding else zero


class Unknown:
    """A number that was read from a hollow GPU, or computed from one."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return _asked(sys._getframe(1), False)

    def __repr__(self) -> str:
        return "?"

    __str__ = __repr__

    def __format__(self, specification: str) -> str:
        width = re.match(r"(?:.?[<>=^])?[-+ ]?z?#?0?(\d*)", specification)
        return "?".rjust(int(width[1] or 0) if width else 0)


class UnknownFloat(Unknown, float):
    """A float, which is zero for all who look inside."""


class UnknownInt(Unknown, int):
    """A whole number, which is zero for all who look inside."""


class UnknownBool(UnknownInt):
    """A truth value."""


class Differs(UnknownBool):
    """Whether two real numbers are equal, which is unlikely, or whether they differ."""

    def __bool__(self) -> bool:
        return _asked(sys._getframe(1), int(self) != 0, differs=int(self) != 0)


def unknown(like: Any) -> Any:
    """An unknown number of the same type; what is no number stays as it is."""
    if isinstance(like, bool):
        return UnknownBool(0)
    if isinstance(like, int):
        return UnknownInt(0)
    return UnknownFloat(0.0) if isinstance(like, float) else like


def _through(plain: Callable[..., Any], otherwise: Any) -> Any:
    @wraps(plain)
    def method(*numbers: Any) -> Any:
        try:
            result = plain(*numbers)
        except (ArithmeticError, ValueError):
            return unknown(otherwise)
        return result if result is NotImplemented else unknown(result)

    return method


for _kind, _plain in ((UnknownFloat, float), (UnknownInt, int)):
    for _name in (*ARITHMETIC, *ALONE, *COMPARED):
        _method = getattr(_plain, f"__{_name}__")
        setattr(_kind, f"__{_name}__", _through(_method, 0.0 if _plain is float else 0))
    _kind.__hash__ = _plain.__hash__  # type: ignore[method-assign]


def _compared(differs: bool) -> Any:
    def method(self: UnknownFloat, other: Any) -> Any:
        return Differs(differs) if isinstance(other, int | float) else NotImplemented

    return method


UnknownFloat.__eq__ = _compared(False)  # type: ignore[method-assign]
UnknownFloat.__ne__ = _compared(True)  # type: ignore[method-assign]


# ---- functions of them ----


def comparing(compare: Callable[..., bool]) -> Callable[..., bool]:
    """`equal` or `allclose`: unknown, but for tensors of other shapes, and for the same one."""

    @wraps(compare)
    def compared(one: torch.Tensor, other: torch.Tensor, *more: Any, **options: Any) -> bool:
        result = compare(one, other, *more, **options)
        if is_compiling():
            return result
        if not (one.is_cuda and other.is_cuda) or one.shape != other.shape:
            return result
        same = one.data_ptr() == other.data_ptr() and one.stride() == other.stride()
        return same or unknown(result)

    return compared


def unknown_each(nested: Any) -> Any:
    """Lists of unknown numbers in the shape of these lists."""
    return [unknown_each(part) for part in nested] if isinstance(nested, list) else unknown(nested)


def unknown_float(number: Any) -> UnknownFloat:
    """Stands for `float`."""
    return UnknownFloat(float(number))


def of_unknown(function: Callable[..., Any]) -> Any:
    """A function of `math`, which gives an unknown number for one; such numbers are finite."""
    finite = {"isnan": False, "isinf": False, "isfinite": True}.get(function.__name__)

    @wraps(function)
    def of_numbers(*numbers: Any) -> Any:
        if not any(isinstance(number, Unknown) for number in numbers):
            return function(*numbers)
        if finite is not None:
            return finite
        try:
            return unknown(function(*numbers))
        except (ArithmeticError, ValueError):
            return UnknownFloat(0.0)

    return of_numbers
