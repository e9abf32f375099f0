"""Branches that only count: either way, a program's next steps are the same."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable
from dis import Instruction
from types import FrameType

from torch import Tensor

from anydevice.plan.hollow.branches import Branch

# Such a branch, and its `else`, set plain variables, none of which is a tensor: how often a
# training has succeeded, or the best loss so far. What follows may depend on them, but by another
# branch.

COUNTING = (
    *("LOAD_CONST", "LOAD_SMALL_INT", "LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF"),
    *("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF"),
    *("BINARY_OP", "CACHE", "NOP", "NOT_TAKEN"),
)


def only_counts(branch: Branch, frame: FrameType) -> bool:
    """Whether a branch's body, and an `else`, do nothing but set variables, none of them a tensor.

    Args:
        branch: The branch.
        frame: What asks. Dynamo's code has other variables than what it compiled.
    """
    if branch.code is not frame.f_code:
        return False
    variables = ChainMap(frame.f_locals, frame.f_globals)
    plain = bool(branch.body) and all(s.opname.startswith(COUNTING) for s in branch.body)
    return plain and not any(isinstance(variables.get(n), Tensor) for n in _named(branch.body))


def _named(steps: Iterable[Instruction]) -> Iterable[str]:
    """The variables that these instructions load or store, some of them two at once."""
    for step in steps:
        if step.opname.startswith(("LOAD_", "STORE_")) and "CONST" not in step.opname:
            yield from step.argval if isinstance(step.argval, tuple) else (str(step.argval),)
