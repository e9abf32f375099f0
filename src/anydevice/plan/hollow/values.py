"""Values that a program reads from a hollow GPU, and an error where it branches on one."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

import torch

from anydevice.errors import UsageError
from anydevice.frames import is_own, line_text

# Note [How a hollow GPU answers reads]
# A hollow GPU has no values, so `tensor.item()`, `bool(tensor)` and the like read zero. A program
# may print that and compute with it. But if one of its lines branches on it, a real GPU might take
# the other branch, and the plan would predict a run that never happens. So such a branch is an
# error:
#
# - `item()` returns a ReadFloat, ReadInt or ReadBool, which behave as float, int and bool.
#   Arithmetic and comparisons on them give such numbers again, so that `total += loss.item()` stays
#   marked.
# - Python asks for the truth of a value by `__bool__`, for a branch (`if`, `while`, `and`,
#   `assert`) as well as for `bool(x)`. `_look` distinguishes them by the bytecode: whether the
#   instruction that the caller is at is a conditional jump.
# - Only the user's own lines count. PyTorch and other libraries branch on values too, in schedulers
#   and gradient clipping for example, where zero takes the usual branch.
# - Branched is a BaseException, so that `except Exception` in the program lets it pass.

ARITHMETIC = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
    *("radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rpow"),
)
ALONE = ("neg", "pos", "abs")
COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")


class ReadFloat(float):
    """A number that was read from a hollow GPU, or computed from one."""

    def __bool__(self) -> bool:
        _look(sys._getframe(1))
        return float.__bool__(self)


class ReadInt(int):
    """A whole number, or a truth value, that was read from a hollow GPU."""

    def __bool__(self) -> bool:
        _look(sys._getframe(1))
        return int.__bool__(self)


class ReadBool(ReadInt):
    """The result of a comparison of such a number."""

    def __repr__(self) -> str:
        return repr(int.__bool__(self))

    __str__ = __repr__


def read(value: Any) -> Any:
    """The value, in a type that notices when a program branches on it."""
    if isinstance(value, bool):
        return ReadBool(value)
    if isinstance(value, int):
        return ReadInt(value)
    return ReadFloat(value) if isinstance(value, float) else value


def _through(kind: type, name: str, wrap: Callable[[Any], Any]) -> Any:
    plain = getattr(kind, f"__{name}__")

    def method(self: Any, *others: Any) -> Any:
        result = plain(self, *others)
        return result if result is NotImplemented else wrap(result)

    return method


for _kind, _plain in ((ReadFloat, float), (ReadInt, int)):
    for _name in (*ARITHMETIC, *ALONE, *COMPARED):
        setattr(_kind, f"__{_name}__", _through(_plain, _name, read))
    _kind.__hash__ = _plain.__hash__  # type: ignore[method-assign]


def _look(frame: FrameType | None) -> None:
    if frame and is_own(frame.f_code.co_filename) and frame.f_lasti in _branches(frame.f_code):
        raise Branched(line_text(frame.f_code.co_filename, frame.f_lineno))


@cache
def _branches(code: CodeType) -> frozenset[int]:
    """The offsets of a function's branches: `if`, `while`, `and`, `assert`."""
    return frozenset(step.offset for step in dis.get_instructions(code) if _forks(step))


def _forks(step: dis.Instruction) -> bool:
    jumps = "JUMP" in step.opname and "_IF_" in step.opname
    asks = step.opname in ("TO_BOOL", "UNARY_NOT")  # from Python 3.13 on, just before a jump
    return jumps or asks or (step.opname == "COMPARE_OP" and step.argrepr.startswith("bool("))


class Branched(BaseException):
    """A program branches on a value that a hollow GPU does not have."""


@contextmanager
def branches_refused() -> Iterator[None]:
    """Inside the block, a branch of the user's code on a value from the GPU is an error."""
    tensor: Any = torch.Tensor
    item, truth = tensor.item, tensor.__bool__

    def reading_item(self: torch.Tensor) -> Any:
        return read(item(self)) if self.is_cuda else item(self)

    def reading_truth(self: torch.Tensor) -> bool:
        if self.is_cuda:
            _look(sys._getframe(1))
        return bool(truth(self))

    with (
        patch.object(tensor, "item", reading_item),
        patch.object(tensor, "__bool__", reading_truth),
    ):
        try:
            yield
        except Branched as branched:
            raise UsageError(
                f"expected a program whose steps do not depend on values, got {branched}, which "
                "branches on what it read from the GPU, and a hollow GPU has no values: use "
                "--assume-zeros (assume_zeros=True) if the branch for zero is the usual one."
            ) from None
