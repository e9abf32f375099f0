"""Watches a program's steps on a hollow GPU: what each block of memory is for, and when to stop."""

from __future__ import annotations

import os
import sys
import threading
from bisect import bisect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from types import FrameType
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator, OpOverload
from torch.multiprocessing import reductions
from torch.nn.modules import module as modules
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from anydevice.devices.catalogue import Card
from anydevice.frames import own_line
from anydevice.plan.hollow import blocks, workspaces
from anydevice.plan.hollow.attention import KERNELS, Attention
from anydevice.plan.hollow.blocks import Ledger
from anydevice.plan.hollow.compiled import AS_WRITTEN, Compiled, is_compiling
from anydevice.plan.hollow.fetching import fetching_within
from anydevice.plan.hollow.phases import Phase, passes, turns
from anydevice.plan.hollow.repeated import Repeated
from anydevice.plan.hollow.sizes import AssumedSizes
from anydevice.plan.hollow.steps import BACKWARD, FORWARD, STEP, Steps
from anydevice.plan.hollow.vision import of_vision, without_kernel
from anydevice.plan.time.overloads import Overload, overload_of
from anydevice.plan.time.recorder import WorkRecorder, in_backward, tensors_in
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
# - In the backward pass no module runs, unless checkpointing runs it again. A block belongs to the
#   module whose forward pass made the current node of autograd's graph. Nodes are numbered in the
#   order in which they are made, so it is enough to note the next number whenever a module is
#   entered or left (`_go_to`) and to look up the node's number among those (`_owner_of_node`).
# - Between the two hooks of an optimizer's step it is a temporary of the optimizer.
# - Some purposes show only afterwards. `Ledger.name` then renames the blocks of given tensors: the
#   parameters and inputs of a network when it is first called, gradients when the optimizer begins
#   a step, the optimizer's state when the step is done.
#
# Modules run in one thread, the program's; autograd's engine calls `_birth` from its own threads.
# What cuBLAS and cuDNN would allocate is allocated here, after the op that needs it
# (workspaces.py).


StorageWeakRef: Any = reductions.StorageWeakRef
FAKE = torch._C._TorchDispatchModeKey.FAKE
SENDS = (torch.ops.c10d.send.default, torch.ops.c10d.recv_.default)
MORE = (workspaces.PRODUCTS, workspaces.GROUPS, workspaces.KEEP_ELEMENTS, KERNELS)
LOOKED_AT = {packet.__name__ for packets in MORE for packet in packets}
DATA_PARALLEL = "torch.nn.parallel.data_parallel"  # whose name is a function's in torch.nn.parallel


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
        work = self._here, self._entries_between, self._add_entries
        self.repeated = Repeated(*work, self.ledger, self.sizes.known)
        self.samples: int | None = None  # in the first batch that a network was given
        self.tokens: int | None = None  # in that batch, if it is of whole numbers
        self._batches: list[tuple[int, int, bool]] = []  # event, size, whether it has gradients
        self._backwards: dict[int, int] = {}  # the events at which autograd's runs began, by id
        self._network: int | None = None  # id of the first network
        self.refused = 0  # workspaces that a full GPU had no room for
        self.backward = False  # whether it computed gradients
        self.on_host = ""  # the line of an optimizer step whose parameters are not on a GPU
        self.cudnn = 0  # the largest workspace of a convolution
        self.emulated = False  # whether it computes in bf16 on a card that has none
        self.repeats = 0  # backward passes in a step, if not all were run again
        self.shapes: list[tuple[int, ...]] = []  # of the input of each pass forward
        self.optimized: dict[int, str] = {}  # the network of each optimizer, by its id
        self._optimizers: WeakSet[Optimizer] = WeakSet()
        self._in_compiled = False  # a function of the program's, which may step optimizers
        self._listening = ExitStack()
        self._records = False  # from the first backward pass on, or the first forward pass alone
        self._thread = threading.get_ident()
        self._path: list[str] = []  # of the running modules, the innermost last
        self._names: dict[int, str] = {}
        self._weights: dict[int, str] = {}  # the network of each parameter, by its id
        self.kinds: dict[str, str] = {}  # the class of each module, by name
        self._roots = 0
        self._nodes: list[int] = [0]  # autograd's nodes from this number on …
        self._owners: list[str] = [""]  # … are of this module
        # Storages of what gradients are computed for. Each is kept by a weak reference, so that one
        # that is freed leaves its id to no other.
        self._leaves: dict[int, Any] = {}
        self._lazy: set[int] = set()  # modules whose parameters have no shape yet
        self._given: set[int] = set()  # ids of what optimizers were made for
        self.pipelined = False  # whether ranks send to each other, as a pipeline's stages do
        self._in_optimizer = False
        self._reads_gpu = False
        self._workspace = False
        self._kept: dict[tuple[int, bool, int], Tensor] = {}

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
        if torch._C._get_dispatch_mode(FAKE) is not None:
            return op(*args, **kwargs)  # DTensor asks for shapes alone, once for each op
        if type(op) is not OpOverload and isinstance(op, HigherOrderOperator):
            return self.compiled.run(op, self, args, kwargs)
        if is_compiling():
            return op(*args, **kwargs)
        if types and any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # the ops inside come here next
        inputs = tensors_in((*args, *kwargs.values()))
        self._reads_gpu = any(tensor.is_cuda for tensor in inputs)
        call = overload_of(op)
        if not self._reads_gpu:
            return self._run(call, args, kwargs, inputs)
        if (run := torch._C._current_graph_task_id()) != -1:
            self._backwards.setdefault(run, self.ledger.events)
            self.backward = True
        by_hand = not (self.pipelined and self.steps.optimizers)  # whose stages receive into leaves
        outside = run == -1 and not self._in_optimizer
        if not self.steps.marks[STEP] and by_hand and outside:
            self._look_for_updates(call, args, kwargs, inputs)
        result = self._run(call, args, kwargs, inputs)
        if call.name in LOOKED_AT:
            return self._as_on_cuda(call.packet, args, result)
        return result

    def _as_on_cuda(self, packet: Any, args: tuple[Any, ...], result: Any) -> Any:
        """The result, once all memory is taken that CUDA and its libraries take for it."""
        if packet in workspaces.PRODUCTS:
            self._take_cublas(result)
        elif packet in workspaces.GROUPS:
            self._take_cudnn(packet, args, result)
        elif packet in workspaces.KEEP_ELEMENTS:
            return workspaces.loss_as_on_cuda(packet, args, result)
        else:
            self.attention.see(packet)
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

    def _look_for_updates(
        self, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[Tensor]
    ) -> None:
        """Whether the program writes to what it computes gradients for: Note [What is a step]."""
        if op.mutable:
            if self._leaves and any(_storage(t) in self._leaves for t in op.writes(args, kwargs)):
                self.steps.written()
        elif torch.is_grad_enabled() and op.name != "detach":
            used = [tensor for tensor in inputs if _is_trained(tensor)]
            if used:
                for leaf in used:
                    if _storage(leaf) not in self._leaves:
                        self._leaves[_storage(leaf)] = StorageWeakRef(leaf.untyped_storage())
                self.steps.computed()
                self.end_if_enough()

    def _take_cublas(self, result: Any) -> None:
        """PyTorch keeps one for each stream of each thread; backward runs in a separate thread."""
        if not isinstance(result, Tensor) or not result.is_cuda:
            return
        device = result.get_device()
        half = result.dtype == torch.bfloat16
        self.emulated = self.emulated or (half and self.card.capability < (8, 0))
        key = (device, in_backward(), torch._C._cuda_getCurrentStream(device)[0])
        if key not in self._kept:
            self._kept[key] = self._work_in(workspaces.cublas_bytes(self.card), result)

    def _take_cudnn(self, op: Any, args: tuple[Any, ...], result: Any) -> None:
        first = result if isinstance(result, Tensor) else args[0]
        if first.is_cuda and (size := workspaces.cudnn_bytes(self.card, op, args, result)):
            try:
                self._work_in(size, first)
            except torch.OutOfMemoryError:  # cuDNN then takes an algorithm that needs less
                self.refused += 1
                return
            self.cudnn = max(self.cudnn, size)

    def _work_in(self, size: int, near: Tensor) -> Tensor:
        self._workspace = True
        try:
            return torch.empty(size, dtype=torch.uint8, device=near.device)
        finally:
            self._workspace = False

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
        if self._workspace:
            return blocks.WORKSPACE, ""
        path = self._path[-1] if self._path else ""
        if in_backward() and not path:
            return blocks.BACKWARD, self._owner_of_node()
        if self._in_optimizer and not path:  # it may call a closure, which calls a network
            return blocks.TEMPORARY, ""
        inside = bool(path) or self._reads_gpu
        return (blocks.ACTIVATIONS if inside else blocks.INPUTS), path

    def _owner_of_node(self) -> str:
        node = torch._C._current_autograd_node()
        number = node._sequence_nr() if node is not None else 0
        if number >= 2**62:  # not an op's node: it accumulates a parameter's gradient
            return ""
        return self._owners[bisect(self._nodes, number) - 1]

    # ---- each module ----

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        if torch.compiler.is_compiling():  # Dynamo traces hooks, too
            return
        if threading.get_ident() != self._thread:
            return
        if not self._path and self.leaves_out and self._is_pass(module):
            self.repeated.begins(module, (*inputs, *_named_inputs(sys._getframe(1))))
        if not inputs and not self._path:
            inputs = _named_inputs(sys._getframe(1))
        if id(module) not in self._names:
            self._learn(module, inputs)
        elif not self._path:
            self.ledger.name(_weights(module), blocks.PARAMETERS)  # moved away and back, perhaps
        if not self._path and self._is_pass(module):
            self._pass_forward(inputs)
        if id(module) == self._network and not in_backward():
            grad = torch.is_grad_enabled()
            self._batches += [(self.ledger.events, n, grad) for n in _batch_sizes(inputs)]
        self._go_to([*self._path, self._names[id(module)]])

    def _is_pass(self, module: nn.Module) -> bool:
        return not in_backward() and next(module.parameters(), None) is not None

    def _pass_forward(self, inputs: Any) -> None:
        """A network is called by the program itself."""
        if self.steps.marks[STEP] and not self.steps.inference:
            return
        self.steps.passes_forward(torch.cuda.memory_allocated())
        first = next(iter(_tensors(inputs)), None)
        self.shapes.append(() if first is None else tuple(first.shape))
        if not torch.is_grad_enabled():
            self.record()
        self.end_if_enough()

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if threading.get_ident() == self._thread and self._path:
            self._go_to(self._path[:-1])
            if not self._path:
                self.repeated.ends(output)
            if id(module) in self._lazy:
                self._lazy.discard(id(module))
                self.ledger.name(_weights(module), blocks.PARAMETERS)

    def _go_to(self, path: list[str]) -> None:
        self._path = path
        self._nodes.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
        self._owners.append(path[-1] if path else "")

    def _learn(self, root: nn.Module, inputs: Any) -> None:
        """A module that is not part of one seen before: a network, or a loss."""
        own = type(getattr(root, "_orig_mod", root)).__name__
        prefix = f"{own}." if self._roots else ""
        for path, part in root.named_modules():
            name = path.removeprefix("_orig_mod").removeprefix(".")  # of torch.compile
            full = self._names.setdefault(id(part), prefix + name if name else own)
            self.kinds[full] = type(part).__name__
            if any(is_lazy(p) for p in (*part._parameters.values(), *part._buffers.values())):
                self._lazy.add(id(part))
        weights = _weights(root)
        self._weights.update(dict.fromkeys(map(id, weights), own))
        self.ledger.name(weights, blocks.PARAMETERS)
        self.ledger.name(_tensors(inputs), blocks.INPUTS, over=(blocks.ACTIVATIONS,))
        if weights:
            self._roots += 1
            if self.samples is None and (sizes := _batch_sizes(inputs)):
                self.samples, self._network = sizes[0], id(root)
                whole = [t for t in _tensors(inputs) if t.dim() > 1 and not t.is_floating_point()]
                self.tokens = whole[0].numel() if whole else None

    # ---- each step ----

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._in_optimizer = True
        self.repeated.close()
        trained = _trained(optimizer)
        self.ledger.name(trained, blocks.PARAMETERS)
        self.ledger.name((p.grad for p in trained), blocks.GRADIENTS)
        if not any(p.is_cuda for p in trained):
            self.on_host = own_line(sys._getframe(1))

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._in_optimizer = False
        state = [value for values in optimizer.state.values() for value in _tensors(values)]
        self.ledger.name(state, blocks.OPTIMIZER)
        self.steps.mark(STEP, id(optimizer))
        if id(optimizer) not in self.optimized:
            networks = (self._weights.get(id(p), "") for p in _trained(optimizer))
            self.optimized[id(optimizer)] = next(filter(None, networks), type(optimizer).__name__)
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
        before = {optimizer: _changes(optimizer) for optimizer in self._optimizers}
        self._in_compiled = True
        try:
            yield
        finally:
            self._in_compiled = self._in_optimizer = False
        for optimizer, changes in before.items():
            if changes != _changes(optimizer):
                self._after_step(optimizer, (), {})

    def _made(self, optimizer: Optimizer) -> None:
        """The program made an optimizer; it counts if no other has all its parameters."""
        self._optimizers.add(optimizer)
        own = {id(p) for p in _trained(optimizer)} - self._given
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
        """All micro-batches of the last step; a batch that a network gets twice counts once."""
        if not self.steps.ends:
            return None
        begin, end = self.steps.begin.event, self.steps.ends[-1].event
        batches = [batch for batch in self._batches if begin <= batch[0] < end]
        batches = [batch for batch in batches if batch[2]] or batches
        backwards = sum(begin <= event < end for event in self._backwards.values())
        share = min(1.0, backwards / len(batches)) if backwards and batches else 1.0
        return round(share * sum(size for _, size, _ in batches)) or None

    def record(self) -> None:
        """Begins to record work; the first step creates all state, and is mostly left out."""
        if self.recorder and not self._records:
            self._records = True
            self._listening.enter_context(listening(self._hear))
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
                fetching_within(self._fetching, self._here),
                seen(self._made, self._went_back),
                self.compiled.seen(),
                self,
            ):
                yield self
        finally:
            self.repeated.close()
            for hook in hooks:
                hook.remove()
            self._kept.clear()


eval_frame: Any = torch._C._dynamo.eval_frame
SKIP = eval_frame._FrameAction.SKIP
eval_frame.set_code_exec_strategy(
    StepWatch.__torch_dispatch__.__code__, eval_frame._FrameExecStrategy(SKIP, SKIP)
)


@contextmanager
def seen(made: Callable[[Optimizer], None], went_back: Callable[[], None]) -> Iterator[None]:
    """Inside the block, each new optimizer and each backward pass that ends is reported."""
    make = Optimizer.__init__

    def make_seen(self: Optimizer, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        made(self)

    def seen_back(run: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(run)
        def run_seen(*arguments: Any, **options: Any) -> Any:
            inside = in_backward()
            gradients = run(*arguments, **options)
            if not inside:
                went_back()
            return gradients

        return run_seen

    with (
        patch.object(sys.modules[DATA_PARALLEL], "parallel_apply", in_turn),
        patch.object(Optimizer, "__init__", make_seen),
        patch.object(torch.autograd, "backward", seen_back(torch.autograd.backward)),
        patch.object(torch.autograd, "grad", seen_back(torch.autograd.grad)),
    ):
        yield


def in_turn(modules: Any, inputs: Any, options: Any, devices: Any) -> list[Any]:
    """What DataParallel does in a thread for each GPU, where nothing watches."""
    outputs = []
    for module, given, named, device in zip(modules, inputs, options, devices, strict=True):
        with torch.cuda.device(device):
            outputs.append(module(*given, **named))
    return outputs


def _named_inputs(call: FrameType) -> tuple[Any, ...]:
    """What a module was called with by name; hooks of all modules do not get it."""
    named = call.f_locals.get("kwargs")
    return tuple(named.values()) if isinstance(named, dict) else ()


def _weights(module: nn.Module) -> list[Tensor]:
    """Its parameters and buffers, except those of lazy layers that have no shape yet."""
    return [w for w in (*module.parameters(), *module.buffers()) if not is_lazy(w)]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else 0


def _is_trained(tensor: Tensor) -> bool:
    return tensor.is_leaf and tensor.requires_grad and tensor.layout == torch.strided


def _changes(optimizer: Optimizer) -> int:
    """How often its parameters were written to."""
    return sum(p._version for p in _trained(optimizer))


def _trained(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _batch_sizes(inputs: Any) -> list[int]:
    """The first dimension of the first tensor that has one."""
    return [tensor.shape[0] for tensor in _tensors(inputs) if tensor.dim()][:1]


def _tensors(nested: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(nested) if isinstance(leaf, Tensor)]
