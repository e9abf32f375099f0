"""Values that a program reads from a hollow GPU, and what follows where it branches on one."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch.testing._comparison import TensorLikePair

from anydevice.errors import UsageError
from anydevice.frames import is_own, line_text
from anydevice.plan.hollow.branches import PATIENCE, Branch, branch_of
from anydevice.plan.hollow.counting import only_counts
from anydevice.plan.hollow.known import KnownValues
from anydevice.plan.hollow.unknown import (
    OF_MATH,
    comparing,
    deciding,
    of_unknown,
    unknown,
    unknown_each,
    unknown_float,
)
from anydevice.virtual.compiled.tracing import as_written

# Note [How a hollow GPU answers reads]
# What a program reads from a hollow GPU is one of three:
#
# - Some values are known (Note [Known and assumed values] in known.py), such as whole numbers that
#   the host put there. They are read as they are, and a branch on one is an ordinary branch.
# - Any other number is unknown. `item()`, `tolist()` and the like return an UnknownFloat,
#   UnknownInt or UnknownBool. These are a float and an int of zero for all who look inside, such
#   as C code. They print as "?". Arithmetic, comparisons and the functions of `math` give unknown
#   numbers again, and never fail: `1 / loss.item()` is unknown, not a division by zero. So a number
#   that is read to be printed, logged or summed is never a reason to refuse.
# - Python asks for the truth of an unknown value by `__bool__`, for a branch (`if`, `while`, `and`,
#   `assert`) as well as for `bool(x)`. If the instruction that the caller is at is a conditional
#   jump, the program's next steps depend on what nobody knows. `Branches.truth` decides.
#
# It decides by the code (Note [A branch on an unknown value] in branches.py). What stays undecided
# is skipped, and the answer says so with the line, if a step was complete: by then it is known what
# a step takes. Before that, in the user's own lines, it is an error, since the plan might predict a
# run that never happens. Libraries branch on values, too, in schedulers and gradient clipping for
# example, where zero takes the usual branch. A Branched is a BaseException, so that
# `except Exception` in the program lets it pass.
#
# Whether two real numbers are equal is asked for rare cases: they are taken to differ.
#
# torch.testing.assert_close compares values last: those of a hollow GPU are taken to be close.
#
# A number that is read from a copy on the host (`loss.cpu().item()`) is unknown, too. What ops make
# of the copy, and `.numpy()`, is zero and not marked. So is `float(tensor)`, which Python makes a
# plain float. A loop that waits for such a number to change, or to stay, would end early. If a
# program does, it is run again with numbers that go down as a loss does (`falling`).

LOSS, SLOPE = 0.5, 0.9  # what float() reads goes down so, if it is not zero


# ---- branches ----


class Branched(BaseException):
    """A program branches on a value that a hollow GPU does not have."""


@dataclass
class Branches:
    """The branches on unknown values, and which way each of them goes."""

    has_stepped: Callable[[], bool] = lambda: False
    zeros: bool = False  # take the user's own branches for zero
    undecided: dict[str, None] = field(default_factory=dict)  # lines, in order
    checks: dict[str, None] = field(default_factory=dict)
    differing: dict[str, None] = field(default_factory=dict)  # that ask if real numbers are equal
    falling: bool = False  # whether float() gets ever smaller numbers, and no zeros
    floats: dict[str, None] = field(default_factory=dict)  # lines where it reads what is unknown
    _asked: dict[tuple[Any, int], int] = field(default_factory=dict)
    _reads: int = 0

    def truth(
        self, frame: FrameType, zero: bool, *, likely: bool = False, differs: bool | None = None
    ) -> bool:
        """The truth for the code that runs in this frame.

        Args:
            frame: What asks.
            zero: What it is for zero.
            likely: Whether it is true for most values.
            differs: What it is if two real numbers differ, if it asks for that.
        """
        frame, branch = branch_of(frame)
        if branch is None:
            return zero
        own = is_own(frame.f_code.co_filename)
        if not own and (usual := branch.usual) is not None:
            return usual
        line = line_text(frame.f_code.co_filename, frame.f_lineno)
        if branch.check is not None:
            if own:
                self.checks[line] = None
            return branch.check
        if own and self.zeros:
            return zero
        if branch.loops is not None:
            return branch.loops == self._goes_on(branch, PATIENCE if own else 2)
        if differs is not None:
            self.differing[line] = None
            return differs
        if likely or not own:
            return likely or zero
        if not branch.only_reports:
            if not (self.has_stepped() or branch.guards or only_counts(branch, frame)):
                raise Branched(line)
            self.undecided[line] = None
        return branch.skips

    def as_float(self, frame: FrameType, zero: float) -> float:
        """What float() makes of an unknown value."""
        if is_own(frame.f_code.co_filename):
            self.floats[line_text(frame.f_code.co_filename, frame.f_lineno)] = None
        if not self.falling:
            return zero
        self._reads += 1
        return LOSS * SLOPE**self._reads

    def _goes_on(self, branch: Branch, patience: int) -> bool:
        key = branch.code, branch.line  # Python asks at both ends of a loop
        self._asked[key] = self._asked.get(key, 0) + 1
        return self._asked[key] % patience != 0


@contextmanager
def reads_answered(branches: Branches, known: KnownValues) -> Iterator[None]:
    """Inside the block, what is read from a GPU is known or Unknown."""
    tensor: Any = torch.Tensor
    item, truth, tolist = tensor.item, tensor.__bool__, tensor.tolist

    def values_of(self: torch.Tensor) -> torch.Tensor | None:
        with torch._C._DisableTorchDispatch():
            return known.of(self)

    @wraps(item)
    def reading_item(self: torch.Tensor) -> Any:
        read = item(self)
        if not self.is_cuda and not known.is_unknown_copy(self):
            return read
        values = values_of(self) if self.is_cuda else None
        if values is not None:
            return item(values)
        frame = sys._getframe(1)
        if isinstance(read, float) and as_written(frame.f_code) is not frame.f_code:
            return branches.as_float(frame, read)  # Dynamo compiles what is left for a float
        return unknown(read)

    @wraps(tolist)
    def reading_list(self: torch.Tensor) -> Any:
        read = tolist(self)
        if not self.is_cuda:
            return unknown_each(read) if known.is_unknown_copy(self) else read
        values = values_of(self)
        return unknown_each(read) if values is None else tolist(values)

    def reading_truth(self: torch.Tensor) -> bool:
        read = bool(truth(self))
        if not self.is_cuda:
            return read
        values = values_of(self)
        if values is not None:
            return bool(truth(values))
        frame, differs = sys._getframe(1), known.differs(self)
        return branches.truth(
            frame, read or differs is True, likely=known.likely(self), differs=differs
        )

    as_float = tensor.__float__

    def reading_float(self: torch.Tensor) -> float:
        read = float(as_float(self))
        values = values_of(self) if self.is_cuda else None
        if values is not None:
            return float(as_float(values))
        if self.is_cuda or known.is_unknown_copy(self):
            return branches.as_float(sys._getframe(1), read)
        return read

    def as_known(plain: Callable[..., Any]) -> Callable[..., Any]:
        def reading(self: torch.Tensor) -> Any:
            read = plain(self)
            values = values_of(self) if self.is_cuda else None
            return read if values is None else plain(values)

        return reading

    with ExitStack() as stack:
        for name, reading in (("item", reading_item), ("tolist", reading_list)):
            stack.enter_context(patch.object(tensor, name, reading))
        stack.enter_context(patch.object(tensor, "__bool__", reading_truth))
        stack.enter_context(patch.object(tensor, "__float__", reading_float))
        for name in ("__int__", "__index__"):
            stack.enter_context(patch.object(tensor, name, as_known(getattr(tensor, name))))
        for owner in (torch, tensor):
            stack.enter_context(patch.object(owner, "equal", comparing(owner.equal)))
            stack.enter_context(patch.object(owner, "allclose", comparing(owner.allclose)))
        for name in OF_MATH:
            stack.enter_context(patch.object(math, name, of_unknown(getattr(math, name))))
        stack.enter_context(patch.object(TensorLikePair, "_compare_values", _taken_as_close))
        lbfgs = sys.modules["torch.optim.lbfgs"]  # which compares losses that `float` gave it
        stack.enter_context(patch.object(lbfgs, "float", unknown_float, create=True))
        deciding.append(branches)
        stack.callback(deciding.remove, branches)
        try:
            yield
        except Branched as branched:
            raise UsageError(
                f"expected a program whose first step does not depend on values, got {branched}, "
                "which branches on what it read from the GPU, and a hollow GPU has no values: use "
                "--assume-zeros (assume_zeros=True) if the branch for zero is the usual one."
            ) from None


def _taken_as_close(pair: TensorLikePair, actual: torch.Tensor, expected: torch.Tensor) -> None:
    """For torch.testing.assert_close, which has compared device, dtype and shape before."""
    if not (actual.is_cuda or expected.is_cuda):
        _compare_values(pair, actual, expected)


_compare_values = TensorLikePair._compare_values
