"""Watches a program's steps on a hollow GPU: what each block of memory is for, and when to stop."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import FrameType
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator, OpOverload
from torch.nn.modules import module as modules
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from anydevice.devices.catalogue import Card
from anydevice.frames import own_line
from anydevice.plan.hollow import blocks
from anydevice.plan.hollow.attention import KERNELS, Attention
from anydevice.plan.hollow.batches import Batches, tensors
from anydevice.plan.hollow.blocks import Ledger
from anydevice.plan.hollow.compiled import AS_WRITTEN, Compiled, is_compiling
from anydevice.plan.hollow.fetching import fetching_within
from anydevice.plan.hollow.modules import Modules, weights
from anydevice.plan.hollow.phases import Phase, passes, turns
from anydevice.plan.hollow.repeated import Repeated
from anydevice.plan.hollow.sizes import AssumedSizes
from anydevice.plan.hollow.steps import BACKWARD, FORWARD, STEP, Steps
from anydevice.plan.hollow.training import changes, seen, trained
from anydevice.plan.hollow.unfilled import DRAWS, Unfilled
from anydevice.plan.hollow.updates import Updates
from anydevice.plan.hollow.vision import of_vision, without_kernel
from anydevice.plan.hollow.workspaces import NEED_MEMORY, Workspaces
from anydevice.plan.time.overloads import Overload, overload_of
from anydevice.plan.time.recorder import HEARD, WorkRecorder, device_of, in_backward, tensors_in
from anydevice.plan.time.work import Entry, Work
from anydevice.virtual.compiled.launches import launching
from anydevice.virtual.events import Event, listening

# Note [What a block is for]
# The allocator reports each block when it is taken (blocks.Ledger), and asks `_birth` what it is
# for. That is answered by what the program is doing at this moment, and corrected later:
#
# - Forward hooks on all modules keep the path of the module that is running. A block taken inside
#   is an activation of the innermost module; one taken by an op outside of all modules is an
#   activation if the op reads a tensor on the GPU, else an input.
# - In the backward pass a block belongs to the module that autograd's node comes from (Note [Whose
#   a node is] in modules.py).
# - Between the two hooks of an optimizer's step it is a temporary of the optimizer.
# - Some purposes show only afterwards. `Ledger.name` then renames the blocks of given tensors: the
#   parameters and inputs of a network when it is first called, gradients when the optimizer begins
#   a step, the optimizer's state when the step is done.
#
# Modules run in one thread, the program's; autograd's engine calls `_birth` from its own threads.
# What cuBLAS and cuDNN would allocate is allocated here, after the op that needs it
# (workspaces.py).


FAKE = torch._C._TorchDispatchModeKey.FAKE
SENDS = (torch.ops.c10d.send.default, torch.ops.c10d.recv_.default)
LOOKED_AT = NEED_MEMORY | {packet.__name__ for packet in KERNELS}


class Enough(BaseException):
    """Ends the program after its steps; no Exception, so that `except Exception` lets it pass."""


class StepWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches until enough steps are done (Note [What is a step]), and raises Enough."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Dynamo compiles under this mode as without it."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Its code is skipped below, which takes no frames of Python at each op."""
        return False

    def __init__(
        self,
        card: Card,
        steps: int,
        *,
        timed: bool = True,
        inference: bool = False,
        sizes: AssumedSizes | None = None,
        recorder: WorkRecorder | None = None,
        compiles: str = AS_WRITTEN,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.card = card
        self.recorder = recorder or (WorkRecorder() if timed else None)
        self.steps = Steps(steps, self._here, inference)
        self.ledger = Ledger(self._birth)
        self.sizes = sizes or AssumedSizes()
        self.compiled = Compiled(compiles, self._enter, self._leave, self._stepping)
        self.attention = Attention()
        self.unfilled = Unfilled()
        work = self._here, self._entries_between, self._add_entries
        self.repeated = Repeated(*work, self.ledger, self.sizes.known)
        self.workspaces = Workspaces(card)
        self.updates = Updates(self.steps)
        self.modules = Modules()
        self.batches = Batches()
        self.backward = False  # whether it computed gradients
        self.on_host = ""  # the line of an optimizer step whose parameters are not on a GPU
        self.repeats = 0  # backward passes in a step, if not all were run again
        self.shapes: list[tuple[int, ...]] = []  # of the input of each pass forward
        self.optimized: dict[int, str] = {}  # the network of each optimizer, by its id
        self._optimizers: WeakSet[Optimizer] = WeakSet()
        self._in_compiled = False  # a function of the program's, which may step optimizers
        self._listening = ExitStack()
        self._records = False  # from the first backward pass on, or the first forward pass alone
        self._thread = threading.get_ident()
        self._given: set[int] = set()  # ids of what optimizers were made for
        self.pipelined = False  # whether ranks send to each other, as a pipeline's stages do
        self._in_optimizer = False
        self._reads_gpu = False

    @property
    def last_line(self) -> str:
        """The last line of the program that took memory of a GPU; empty if none did."""
        where = self.ledger.blocks[-1].where if self.ledger.blocks else ""
        return os.path.basename(where).removeprefix(":0")

    def _here(self) -> tuple[int, int]:
        return self.ledger.events, self.recorder.position if self.recorder else 0

    @property
    def step_marks(self) -> list[int]:
        """The allocator's event at the end of each complete step."""
        return [mark.event for mark in self.steps.ends]

    # ---- each op ----

    def __torch_dispatch__(
        self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch._C._get_tracing_state() is not None:
            with untraced():
                return self.__torch_dispatch__(op, types, args, kwargs)
        if torch._C._get_dispatch_mode(FAKE) is not None:
            return op(*args, **kwargs)  # DTensor asks for shapes alone, once for each op
        if type(op) is not OpOverload and isinstance(op, HigherOrderOperator):
            self.unfilled.fill_all()
            return self.compiled.run(op, self, args, kwargs)
        if is_compiling():
            self.unfilled.fill_all()
            return op(*args, **kwargs)
        if types and any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # the ops inside come here next
        inputs = tensors_in((*args, *kwargs.values()))
        self._reads_gpu = device_of(inputs) is not None
        call = overload_of(op)
        if self.unfilled or call.name in DRAWS:
            result = self.unfilled.instead(call, args, kwargs, inputs)
            if result is not NotImplemented:
                return result
        if not self._reads_gpu:
            return self._run(call, args, kwargs, inputs)
        if (run := torch._C._current_graph_task_id()) != -1:
            self.batches.goes_back(run, self.ledger.events)
            self.backward = True
        by_hand = not (self.pipelined and self.steps.optimizers)  # whose stages receive into leaves
        outside = run == -1 and not self._in_optimizer
        looks = not self.steps.marks[STEP] and by_hand and outside
        if looks and self.updates.look(call, args, kwargs, inputs):
            self.end_if_enough()
        result = self._run(call, args, kwargs, inputs)
        if call.name in LOOKED_AT:
            self.attention.see(call.packet)
            return self.workspaces.after(call.packet, args, result)
        return result

    def _run(
        self, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[Tensor]
    ) -> Any:
        if op.collective and op.op in SENDS:
            self.pipelined = True
        vision = self._reads_gpu and of_vision(op)
        call = without_kernel(op, self.sizes.kept) if vision else op.op
        result = self.sizes.answer(op, args, kwargs) if self._reads_gpu else NotImplemented
        if result is not NotImplemented:
            return result
        if self.recorder and self._records:
            result = self.recorder.run(op, args, kwargs, inputs, call)
        else:
            result = call(*args, **kwargs)
        self.sizes.follow(op, args, kwargs, result)
        return result

    # ---- passes that repeat ----

    @property
    def leaves_out(self) -> bool:
        """Whether passes that are like those before need not be run."""
        return bool(self.steps.optimizers) and not self.steps.inference

    def _entries_between(self, begin: int, end: int) -> list[Entry]:
        return self.recorder.between(begin, end).entries if self.recorder else []

    def _add_entries(self, entries: list[Entry]) -> None:
        if self.recorder and self._records:
            for entry in entries:
                self.recorder.add(entry)

    # ---- each allocation ----

    def _birth(self) -> tuple[str, str]:
        if self.workspaces.taking:
            return blocks.WORKSPACE, ""
        path = self.modules.innermost
        if in_backward() and not path:
            return blocks.BACKWARD, self.modules.owner_of_node()
        if self._in_optimizer and not path:  # it may call a closure, which calls a network
            return blocks.TEMPORARY, ""
        inside = bool(path) or self._reads_gpu
        return (blocks.ACTIVATIONS if inside else blocks.INPUTS), path

    # ---- each module ----

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        if torch.compiler.is_compiling():  # Dynamo traces hooks, too
            return
        if threading.get_ident() != self._thread:
            return
        if torch._C._get_tracing_state() is None:
            self._go_in(module, inputs, sys._getframe(1))
        else:
            with untraced():
                self._go_in(module, inputs, sys._getframe(1))

    def _go_in(self, module: nn.Module, inputs: Any, call: FrameType) -> None:
        outermost = not self.modules.path
        is_pass = outermost and not in_backward() and next(module.parameters(), None) is not None
        named = _named_inputs(call) if outermost else ()
        if is_pass and self.leaves_out:
            self.repeated.begins(module, (*inputs, *named))
        inputs = inputs or named
        if id(module) not in self.modules.names:
            self._learn(module, inputs)
        elif outermost:
            self.ledger.name(weights(module), blocks.PARAMETERS)  # moved away and back, perhaps
        if is_pass:
            self._pass_forward(inputs)
        if not in_backward():
            self.batches.add(self.ledger.events, module, inputs)
        self.modules.enter(module)

    def _learn(self, root: nn.Module, inputs: Any) -> None:
        """A module that is not part of one seen before: a network, or a loss."""
        held = self.modules.learn(root)
        self.ledger.name(held, blocks.PARAMETERS)
        self.ledger.name(tensors(inputs), blocks.INPUTS, over=(blocks.ACTIVATIONS,))
        if held:
            self.batches.meet(root, inputs)

    def _pass_forward(self, inputs: Any) -> None:
        """A network is called by the program itself."""
        if self.steps.marks[STEP] and not self.steps.inference:
            return
        self.steps.passes_forward(torch.cuda.memory_allocated())
        first = next(iter(tensors(inputs)), None)
        self.shapes.append(() if first is None else tuple(first.shape))
        if not torch.is_grad_enabled():
            self.record()
        self.end_if_enough()

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if threading.get_ident() == self._thread and self.modules.path:
            has_shapes_now = self.modules.leave(module)
            if not self.modules.path:
                with untraced():
                    self.repeated.ends(output)
            if has_shapes_now:
                self.ledger.name(weights(module), blocks.PARAMETERS)

    # ---- each step ----

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._in_optimizer = True
        self.repeated.close()
        parameters = trained(optimizer)
        self.ledger.name(parameters, blocks.PARAMETERS)
        self.ledger.name((p.grad for p in parameters), blocks.GRADIENTS)
        if not any(p.is_cuda for p in parameters):
            self.on_host = own_line(sys._getframe(1))

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._in_optimizer = False
        state = [value for values in optimizer.state.values() for value in tensors(values)]
        self.ledger.name(state, blocks.OPTIMIZER)
        self.steps.mark(STEP, id(optimizer))
        if id(optimizer) not in self.optimized:
            self.optimized[id(optimizer)] = self.modules.network_of(optimizer)
        self.record()
        self.end_if_enough()

    @contextmanager
    def _stepping(self, function: Any) -> Iterator[None]:
        """A compiled function is called, perhaps an optimizer's step, or one that has it inside.

        Such steps call no hooks: they are known by the parameters that they have changed.
        """
        if self._in_optimizer or self._in_compiled:
            yield
            return
        if isinstance(own := getattr(function, "__self__", None), Optimizer):
            self._before_step(own, (), {})
        before = {optimizer: changes(optimizer) for optimizer in self._optimizers}
        self._in_compiled = True
        try:
            yield
        finally:
            self._in_compiled = self._in_optimizer = False
        for optimizer, earlier in before.items():
            if earlier != changes(optimizer):
                self._after_step(optimizer, (), {})

    def _made(self, optimizer: Optimizer) -> None:
        """The program made an optimizer; it counts if no other has all its parameters."""
        self._optimizers.add(optimizer)
        own = {id(p) for p in trained(optimizer)} - self._given
        self._given |= own
        self.steps.optimizers += bool(own)

    def _went_back(self) -> None:
        """A backward pass is done."""
        self.steps.mark(BACKWARD)
        self.record()
        alike = not self.pipelined and not self._in_optimizer  # which may call a closure
        if alike and (passes := self.steps.accumulates):
            self.repeats = passes
            raise Enough
        self.end_if_enough()

    @property
    def step_samples(self) -> int | None:
        """The samples of all micro-batches of the last step."""
        if not self.steps.ends:
            return None
        return self.batches.between(self.steps.begin.event, self.steps.ends[-1].event)

    def record(self) -> None:
        """Begins to record work; the first step creates all state, and is mostly left out."""
        if self.recorder and not self._records:
            self._records, self.unfilled.begins = True, False
            self._listening.enter_context(listening(self._hear, HEARD))
            self._listening.enter_context(launching(self.recorder.launched))

    def _hear(self, event: Event) -> None:
        if self.recorder and not self.sizes.known.reads:
            self.recorder.hear(event)

    def end_if_enough(self) -> None:
        """Ends the program once enough steps are done."""
        if self.steps.enough:
            raise Enough

    @property
    def work(self) -> Work | None:
        """The last step's work, if all of it was recorded."""
        ends = self.steps.ends
        if self.recorder is None or len(ends) < (1 if self.steps.unit == FORWARD else 2):
            return None
        return self.recorder.between(self.steps.begin.entry, ends[-1].entry)

    @property
    def parts(self) -> list[tuple[Work, int]]:
        """The work of a step that accumulates, of which not all was run: part, and how often."""
        if self.recorder is None or not self.repeats:
            return []
        step, now = self.steps.ends[-1], self.steps.since(BACKWARD)
        last = self.steps.of_last(BACKWARD)[-1]
        spans = ((step, now[1], 1), (now[2], now[3], self.repeats - 2), (last, step, 1))
        return [(self.recorder.between(a.entry, b.entry), count) for a, b, count in spans]

    @property
    def phases(self) -> list[Phase]:
        """The parts of a step, if it has several."""
        seen = self.recorder, self.ledger.blocks
        return turns(self.steps, self.optimized, *seen) or passes(self.steps, self.shapes, *seen)

    def _fetching(self) -> AbstractContextManager[None]:
        """The context in which a batch is fetched."""
        return self.recorder.loading() if self.recorder and self._records else nullcontext()

    @contextmanager
    def watching(self) -> Iterator[StepWatch]:
        """Watches inside the block."""
        hooks = [
            modules.register_module_forward_pre_hook(self._enter),
            modules.register_module_forward_hook(self._leave, always_call=True),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        self.compiled.hooks = hooks
        try:
            with (
                self.ledger,
                self._listening,
                fetching_within(self._fetching, self._here, self.unfilled.fill_all),
                seen(self._made, self._went_back),
                self.compiled.seen(),
                self.unfilled.seen(),
                self,
            ):
                yield self
        finally:
            self.repeated.close()
            for hook in hooks:
                hook.remove()
            self.workspaces.free()


eval_frame: Any = torch._C._dynamo.eval_frame
SKIP = eval_frame._FrameAction.SKIP
eval_frame.set_code_exec_strategy(
    StepWatch.__torch_dispatch__.__code__, eval_frame._FrameExecStrategy(SKIP, SKIP)
)


@contextmanager
def untraced() -> Iterator[None]:
    """Inside the block, torch.jit.trace does not take sizes for tensors."""
    native: Any = torch._C
    tracing = native._get_tracing_state()
    native._set_tracing_state(None)
    try:
        yield
    finally:
        native._set_tracing_state(tracing)


def _named_inputs(call: FrameType) -> tuple[Any, ...]:
    """What a module was called with by name; hooks of all modules do not get it."""
    named = call.f_locals.get("kwargs")
    return tuple(named.values()) if isinstance(named, dict) else ()
