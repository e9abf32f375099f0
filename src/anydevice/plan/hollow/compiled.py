"""Compiled code on a hollow GPU: it runs as written, except where that would change its memory."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.attention.flex_attention as flex_attention_module
from torch import Tensor, nn
from torch._dynamo.eval_frame import OptimizedModule
from torch._guards import CompileContext
from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward
from torch._ops import HigherOrderOperator, resolve_key

from anydevice.virtual.compiled import choice, hollow_inductor

# Note [Compiled code under plan]
# With Triton installed, a program is compiled as for a card (virtual/compiled/hollow_inductor.py).
# The watch is a TorchDispatchMode that Dynamo ignores: what Inductor's wrapper calls of
# PyTorch comes to it as any op does, and the wrapper's kernels come by launches.launching().
#
# Otherwise a compiled function is the function itself. What Inductor would fuse is unknown: memory
# and time are those of the program without torch.compile, which is usually more, and the answer
# says so.
#
# flex_attention is written to be compiled. It is then one kernel that keeps only the result and a
# number for each row: `fused_attention` has its shapes. Without torch.compile it computes all
# scores at once; the shapes are those of the kernel all the same, and the answer says so.
#
# A higher-order op is run by the kernel that PyTorch has for CUDA, under the mode that watches, so
# that the ops inside are seen.

COMPILED = (
    "torch.compile: predicted for the program as written, since {}; compiled, it usually takes "
    "less memory and time."
)
AUTOTUNED = (
    "torch.compile with max-autotune: predicted for the kernels that Inductor takes by its "
    "heuristics, since nothing can be timed here; on a card the quickest of several is taken."
)
CUDA_GRAPHS = (
    "torch.compile with CUDA graphs: their launches are in the time; the memory is without their "
    "private pool, whose blocks other code cannot use."
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
        self.notes: list[str] = []
        self.why_not = ""  # why torch.compile returns what it is given
        self._for_a_card: Callable[..., Any] = torch.compile

    @contextmanager
    def seen(self) -> Iterator[None]:
        """Inside the block, what is compiled is noted."""
        self._for_a_card = torch.compile
        with patch.object(torch, "compile", self._compile), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global")
            yield

    def _compile(self, model: Any = None, **options: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller == flex_attention_module.__name__:
            self.eager_flex = True
            return self._noted(model)  # what flex_attention runs without torch.compile
        if not self.used:
            self.used, self.why_not = True, choice.why_not()
        if not self.why_not:
            self._note_mode(options)
            return self._for_a_card(model, **options)
        if model is None:
            return lambda given: self._compile(given, **options)
        if isinstance(model, nn.Module):
            context: Any = self._noted  # as far as it is used: it wraps the forward pass
            return OptimizedModule(model, context)
        return self._noted(model)

    def _note_mode(self, options: dict[str, Any]) -> None:
        chosen = options.get("mode"), options.get("options")
        if hollow_inductor.wants_autotuning(*chosen) and AUTOTUNED not in self.notes:
            self.notes.append(AUTOTUNED)
        if hollow_inductor.wants_cuda_graphs(*chosen) and CUDA_GRAPHS not in self.notes:
            self.notes.append(CUDA_GRAPHS)

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
        if is_compiling():
            return op(*args, **kwargs)
        with mode:
            if op is flex_attention and self._inside:
                self._fuses = True
                return fused_attention(*args[:3])
            if op is flex_attention_backward and self._fuses:
                query, key, value = args[:3]
                return fused_attention_backward(query, key, value, args[12])
            kernel = op.py_kernels[resolve_key(op, torch._C.DispatchKey.CUDA)]
            return kernel(*args, **kwargs)


def is_compiling() -> bool:
    """Whether a compiler runs: what it computes with are no tensors of the program."""
    return CompileContext.current_compile_id() is not None


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
