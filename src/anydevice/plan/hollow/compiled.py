"""Compiled code on a hollow GPU: it runs as written, except where that would change its memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.attention.flex_attention as flex_attention_module
from torch import Tensor, nn
from torch._dynamo.eval_frame import OptimizedModule
from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward
from torch._ops import HigherOrderOperator, resolve_key

# Note [Compiled code under plan]
# torch.compile would ask Dynamo to trace the program, which refuses to while a TorchDispatchMode
# watches it, and Inductor to generate code for a GPU that is not there. So a compiled function is
# the function itself. What Inductor would fuse is unknown: memory and time are those of the program
# without torch.compile, which is usually more, and the answer says so.
#
# flex_attention is written to be compiled. It is then one kernel that keeps only the result and a
# number for each row: `fused_attention` has its shapes. Without torch.compile it computes all
# scores at once; the shapes are those of the kernel all the same, and the answer says so.
#
# A higher-order op is run by the kernel that PyTorch has for
# CUDA, under the mode that watches, so that the ops inside are seen.

COMPILED = (
    "torch.compile: predicted for the program as written, since what Inductor fuses is not known; "
    "compiled, it usually takes less memory and time."
)


EAGER_FLEX = (
    "flex_attention: predicted for its fused kernel; without torch.compile it holds all scores at "
    "once, which takes more memory."
)


class Compiled:
    """What the program compiled, and how its higher-order ops run."""

    def __init__(self) -> None:
        self.used = False
        self.eager_flex = False
        self._fuses = False  # whether flex_attention was called by compiled code
        self._inside = 0

    @contextmanager
    def as_written(self) -> Iterator[None]:
        """Inside the block, torch.compile returns what it is given."""
        with patch.object(torch, "compile", self._compile):
            yield

    def _compile(self, model: Any = None, **options: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller == flex_attention_module.__name__:
            self.eager_flex = True
            return self._noted(model)  # what flex_attention runs without torch.compile
        self.used = True
        if model is None:
            return lambda given: self._compile(given, **options)
        if isinstance(model, nn.Module):
            context: Any = self._noted  # as far as it is used: it wraps the forward pass
            return OptimizedModule(model, context)
        return self._noted(model)

    def _noted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def compiled(*args: Any, **kwargs: Any) -> Any:
            self._inside += 1
            try:
                return function(*args, **kwargs)
            finally:
                self._inside -= 1

        return compiled

    def run(self, op: HigherOrderOperator, mode: Any, args: Any, kwargs: Any) -> Any:
        """A higher-order op, under the mode that watches."""
        with mode:
            if op is flex_attention and self._inside:
                self._fuses = True
                return fused_attention(*args[:3])
            if op is flex_attention_backward and self._fuses:
                query, key, value = args[:3]
                return fused_attention_backward(query, key, value, args[12])
            kernel = op.py_kernels[resolve_key(op, torch._C.DispatchKey.CUDA)]
            return kernel(*args, **kwargs)


def fused_attention(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The result, and two numbers for each row."""
    rows = query.new_empty(query.shape[:-1], dtype=torch.float32)
    return query.new_empty((*query.shape[:-1], value.shape[-1])), rows, torch.empty_like(rows)


def fused_attention_backward(
    query: Tensor, key: Tensor, value: Tensor, buffers: tuple[Any, ...]
) -> tuple[Any, ...]:
    """The gradients of the three, and of the tensors that its score_mod reads."""
    ofs = [torch.empty_like(b) if isinstance(b, Tensor) else None for b in buffers]
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), tuple(ofs)
