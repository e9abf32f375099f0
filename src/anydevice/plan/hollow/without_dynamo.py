"""An optimizer's step imports Dynamo only for a program that compiles: that takes 2 seconds."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any
from unittest.mock import patch

import torch
import torch._refs.nn.functional
import torch._refs.special
import torch.utils.checkpoint
from torch._compile import _disable_dynamo
from torch._decomp import global_decomposition_table
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer
from torch.optim.optimizer import _use_grad_for_differentiable as breaking

from anydevice.plan.hollow.plain_sizes import plain_sizes
from anydevice.virtual.loading import Waiting

# Note [Without Dynamo]
# PyTorch imports Dynamo in every program that trains, for two things that matter only to code that
# Dynamo traces. While Dynamo is not loaded, both are done without it; once the program imports it,
# all is as PyTorch has it.
#
# - What Dynamo must not trace, such as `Optimizer.zero_grad`, is wrapped in a function that asks
#   Dynamo for one that is not traced when it is first called, and keeps that in an attribute. The
#   function itself does the same, so it is kept there. The shapes of ops are such functions, too,
#   where PyTorch has them in Python.
# - `Optimizer.step` breaks the graph before and after it sets the gradient mode. The functions that
#   do so get the code of `_step_in_mode`, which leaves the breaks out.
#
# `torch._check`, which many ops' shapes go through, imports the mathematics of symbolic shapes, for
# another second; a plain truth does not need it, and neither do plain sizes (plain_sizes.py).

DYNAMO = "torch._dynamo"
KEPT = "__dynamo_disable"
_check_with: Callable[..., None] = torch._check_with


class Loaded:
    """What a child reports if it imported Dynamo: the next child need not."""


@contextmanager
def without_dynamo() -> Iterator[None]:
    """Inside the block, an optimizer does not import Dynamo."""
    if DYNAMO in sys.modules:
        yield
        return
    untraced = [function for function in _untraced() if not hasattr(function, KEPT)]
    steps = list(_steps())
    codes = [step.__code__ for step in steps]

    def as_before() -> None:
        symbolic()
        while untraced:
            delattr(untraced.pop(), KEPT)
        while steps:
            steps.pop().__code__ = codes.pop()

    for function in untraced:
        setattr(function, KEPT, function)
    for step in steps:
        step.__code__ = _inner_code(_step_in_mode)
    later = Waiting()
    try:
        with patch.object(torch, "_check_with", _checked), plain_sizes() as symbolic:
            later.prepare(DYNAMO, as_before)
            yield
    finally:
        later.forget()
        as_before()


def _checked(error_type: Any, cond: Any, message: Any) -> None:
    if cond is not True:
        _check_with(error_type, cond, message)


def _untraced() -> Iterator[Any]:
    """The functions that Dynamo must not trace, as they were before they were wrapped."""
    owners = (Optimizer, DistributedDataParallel, torch.utils.checkpoint)
    shapes = (torch._refs, torch._refs.nn.functional, torch._refs.special)
    waiting = [function for owner in (*owners, *shapes) for function in vars(owner).values()]
    waiting += (shape for table in global_decomposition_table.values() for shape in table.values())
    seen = set[int]()
    while waiting:
        function = waiting.pop()
        if not isinstance(function, FunctionType) or id(function) in seen:
            continue
        seen.add(id(function))
        within = inspect.getclosurevars(function).nonlocals
        if function.__code__ is _inner_code(_disable_dynamo):
            yield within["fn"]
        waiting += within.values()


def _steps() -> Iterator[Any]:
    """The functions of all optimizers that break the graph."""
    classes = [Optimizer]
    while classes:
        kind = classes.pop()
        classes += kind.__subclasses__()
        step = vars(kind).get("step")
        while step and getattr(step, "__code__", None) is not _inner_code(breaking):
            step = getattr(step, "__wrapped__", None)
        if step:
            yield step


def _inner_code(decorator: Callable[..., Any]) -> CodeType:
    """Of the function that is defined in a decorator."""
    return next(part for part in decorator.__code__.co_consts if isinstance(part, CodeType))


def _step_in_mode(func: Callable[..., Any]) -> Callable[..., Any]:
    """As PyTorch's `_use_grad_for_differentiable`, whose functions take this one's code."""

    def step(*args: Any, **kwargs: Any) -> Any:
        before = torch.is_grad_enabled()
        try:
            torch.set_grad_enabled(args[0].defaults["differentiable"])
            return func(*args, **kwargs)
        finally:
            torch.set_grad_enabled(before)

    return step
