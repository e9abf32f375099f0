"""Compiled code on a hollow GPU: it runs as written, except where that would change its memory."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import cache, partial, wraps
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.attention.flex_attention as flex_attention_module
from torch import Tensor, nn
from torch._guards import CompileContext
from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward
from torch._ops import HigherOrderOperator, resolve_key
from torch.utils.hooks import RemovableHandle

from anydevice.plan.hollow import sandbox
from anydevice.plan.hollow.without_dynamo import DYNAMO, without_dynamo
from anydevice.plan.time.recorder import in_backward
from anydevice.virtual.compiled import choice, hollow_inductor
from anydevice.virtual.compiled.names import MissingNameError
from anydevice.virtual.compiled.tracing import Traced, tracing
from anydevice.virtual.loading import Waiting

# Note [Compiled code under plan]
# With Triton installed, a program is compiled as for a card (virtual/compiled/hollow_inductor.py).
# The watch is a TorchDispatchMode that Dynamo ignores: what Inductor's wrapper calls of
# PyTorch comes to it as any op does, and the wrapper's kernels come by launches.launching().
#
# Otherwise a compiled function is the function itself. What Inductor would fuse is unknown: memory
# and time are those of the program without torch.compile, which is usually more, and the answer
# says so. A backend of the program's own is called all the same: it generates no code for a card.
#
# `anydevice plan --compile` runs a program that does not compile once more: each module that it
# calls itself, and that has parameters on a GPU, is called as torch.compile(module). A program that
# does compile is run once more with EAGER.
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
SEEING = (
    *("batches", "blocks", "branches", "known", "modules", "training", "unfilled", "updates"),
    *("values", "watch"),
)
WATCHING = (*(f"anydevice.plan.hollow.{name}" for name in SEEING), "anydevice.plan.time")
TENSORBOARD = "torch.utils.tensorboard.writer"
AS_WRITTEN, EAGER, WHOLE = "", "eager", "whole"  # what is compiled: nothing, or each network
AUTOTUNED = (
    "torch.compile with max-autotune: predicted for the kernels that Inductor takes by its "
    "heuristics, since nothing can be timed here; on a card the quickest of several is taken."
)
CUDA_GRAPHS = (
    "torch.compile with CUDA graphs: their launches are in the time. The private pool that they "
    "share is in the memory, with one cuBLAS workspace for all of them; other code cannot use it."
)
EAGER_FLEX = (
    "flex_attention: predicted for its fused kernel; without torch.compile it holds all scores at "
    "once, which takes more memory."
)


def _nothing(*_: Any, **__: Any) -> None:
    """Nobody asks."""


def _without_graphs() -> AbstractContextManager[Any]:
    """TensorBoard gets no drawing of a network: for TorchScript's tracer, sizes are tensors."""
    return patch.object(sys.modules[TENSORBOARD].SummaryWriter, "add_graph", _nothing)


class Compiled:
    """What the program compiled, and how its higher-order ops run.

    Args:
        what: What is compiled: AS_WRITTEN, EAGER or WHOLE.
        enter: Called with a module that was compiled in place, and its arguments, before it runs.
        leave: Called afterwards, with its result too.
        stepping: The context of a call of a compiled function, which is given.
    """

    def __init__(
        self,
        what: str = AS_WRITTEN,
        enter: Callable[..., None] = _nothing,
        leave: Callable[..., None] = _nothing,
        stepping: Callable[[Any], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.what, self._enter, self._leave, self._stepping = what, enter, leave, stepping
        self.used = False
        self.traced = Traced()
        self._traces, self._tracing = False, ExitStack()
        self.hooks: list[RemovableHandle] = []  # of all modules and optimizers
        self.networks: list[str] = []  # the classes of those that were compiled for WHOLE
        self._wholes: dict[int, Callable[..., Any]] = {}  # by the id of the network
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
        with ExitStack() as stack, self._tracing:
            stack.enter_context(patch.object(torch, "compile", self._compile))
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global")
            if DYNAMO in sys.modules:
                self._trace()
            else:
                stack.enter_context(without_dynamo())
            later = Waiting()
            stack.callback(later.forget)
            later.wait(TENSORBOARD, lambda: stack.enter_context(_without_graphs()))
            if self.what == WHOLE:
                stack.enter_context(patch.object(nn.Module, "__call__", self._calling()))
            yield

    def _trace(self) -> None:
        """From here on, what Dynamo does is noted."""
        if not self._traces:
            self._traces = True
            _leave_out()
            with suppress(MissingNameError):
                self.traced = self._tracing.enter_context(tracing())

    def _calling(self) -> Callable[..., Any]:
        """What calls a module that no other one calls."""
        call = nn.Module.__call__

        def called(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if in_backward():
                return call(module, *args, **kwargs)
            with patch.object(nn.Module, "__call__", call):  # for all that it calls
                return self._whole(module)(*args, **kwargs)

        return called

    def _whole(self, module: nn.Module) -> Callable[..., Any]:
        """The same, compiled."""
        if id(module) not in self._wholes and _is_eager_network(module):
            self._wholes[id(module)] = torch.compile(module)
            self.networks.append(type(module).__name__)
        return self._wholes.get(id(module), module)

    def _compile(self, model: Any = None, **options: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller == flex_attention_module.__name__:
            self.eager_flex = True
            return self._noted(model)  # what flex_attention runs without torch.compile
        if model is None:
            return lambda given: self._compile(given, **options)
        generates = choice.is_inductors(choice.backend_of(options.get("backend")))
        if generates and not self.used and self.what != EAGER:
            self.used, self.why_not = True, choice.why_not() or sandbox.why_no_programs()
        if self.what != EAGER and not (generates and self.why_not):
            if generates:
                self._note_mode(options)
            self._trace()
            compiled = self._for_a_card(model, **options)
            if isinstance(compiled, _optimized_module()):
                compiled.forward = self._unwatched(compiled.forward)
                return compiled
            if _is_own_call(model):
                return self._in_place(model, self._unwatched(compiled))
            return self._unwatched(compiled, partial(self._stepping, model))
        if isinstance(model, nn.Module):
            context: Any = self._noted  # as far as it is used: it wraps the forward pass
            return _optimized_module()(model, context)
        return self._noted(model)

    def _unwatched(
        self,
        compiled: Callable[..., Any],
        within: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> Callable[..., Any]:
        """The same, without the hooks of all modules and optimizers: Dynamo would trace them."""

        @wraps(compiled)
        def called(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return compiled(*args, **kwargs)
            with within(), self._unhooked():
                return compiled(*args, **kwargs)

        return called

    @contextmanager
    def _unhooked(self) -> Iterator[None]:
        """Without `hooks`."""
        places = ((each.hooks_dict_ref(), each.id) for each in self.hooks)
        put_off = [(hooks, id_, hooks.pop(id_)) for hooks, id_ in places if hooks and id_ in hooks]
        try:
            yield
        finally:
            for hooks, id_, hook in put_off:
                hooks[id_] = hook

    def _in_place(self, call: Any, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """What module.compile() keeps: Dynamo leaves hooks out that do nothing while it traces."""
        module = call.__self__

        @wraps(compiled)
        def entered(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return compiled(*args, **kwargs)
            self._enter(module, args or tuple(kwargs.values()))
            output = None
            try:
                output = compiled(*args, **kwargs)
            finally:
                self._leave(module, args, output)
            return output

        return entered

    def _note_mode(self, options: dict[str, Any]) -> None:
        chosen = options.get("mode"), options.get("options")
        if hollow_inductor.wants_autotuning(*chosen) and AUTOTUNED not in self.notes:
            self.notes.append(AUTOTUNED)
        graphs = options.get("backend") == "cudagraphs"
        graphs = graphs or hollow_inductor.wants_cuda_graphs(*chosen)
        if graphs and CUDA_GRAPHS not in self.notes:
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


@cache
def _leave_out() -> None:
    """Dynamo does not trace what watches the program; it does what stands for functions of it."""
    for name in WATCHING:
        import_module("torch._dynamo.trace_rules").add(name)


def _optimized_module() -> Any:
    """Its class, which takes long to import."""
    from torch._dynamo.eval_frame import OptimizedModule

    return OptimizedModule


def _is_own_call(function: Any) -> bool:
    """Whether it is what module.compile() compiles."""
    return getattr(function, "__func__", None) is nn.Module._call_impl


def _is_eager_network(module: nn.Module) -> bool:
    """Whether it is a module with parameters on a GPU that could be compiled and is not."""
    loaded = (_optimized_module(),) if DYNAMO in sys.modules else ()
    compiled = isinstance(module, (torch.jit.ScriptModule, *loaded))
    if compiled or module._compiled_call_impl is not None:
        return False
    return any(parameter.is_cuda for parameter in module.parameters())


def is_compiling() -> bool:
    """Whether a compiler runs: what it computes with are no tensors of the program."""
    return DYNAMO in sys.modules and CompileContext.current_compile_id() is not None


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
