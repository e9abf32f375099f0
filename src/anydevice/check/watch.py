"""Watches a program for the rules: its work by line, its calls, its networks and optimizers."""

from __future__ import annotations

import dis
import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial, wraps
from time import process_time
from types import CodeType
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes

from anydevice.check.calls import Heard
from anydevice.check.parameters import (
    Made,
    Untrained,
    dtype_of,
    graded,
    size_of,
    trained_by,
    untrained,
)
from anydevice.check.spare import Look, spares
from anydevice.check.streams import Races
from anydevice.check.tape import Tape
from anydevice.check.trace import Call, Site, Span, Trace
from anydevice.check.workers import Workers
from anydevice.devices.catalogue import Card
from anydevice.plan.hollow.sizes import AssumedSizes
from anydevice.plan.hollow.steps import FORWARD, STEP
from anydevice.plan.hollow.watch import Enough, StepWatch
from anydevice.plan.time.overloads import Overload
from anydevice.plan.time.recorder import in_backward
from anydevice.virtual.events import Event

# Note [How much of a program is run]
# A mistake may be in the loop, in the evaluation after an epoch, or in the second epoch. So a run
# takes some steps, and then ends the epoch: where a `for` loop asks a DataLoader for the next
# batch, there is none. The program evaluates, where the same happens after a few batches, saves a
# checkpoint, and begins the next epoch. The run ends after `MOST` steps in all.
#
# Only a `for` loop is ended like that. Code that calls next() itself expects as many batches as
# the loader has, and a loop over a range has no loader: such a program runs until `MOST` steps are
# done. Where steps take long, fewer are enough.

PASS = 6  # steps in an epoch
EVALUATED = 3  # batches of an evaluation
SEEN = 24  # passes of an evaluation without a loader, after which its ops are not noted
MOST = 14  # steps in all
SETTLED = range(1, 5)  # steps before which it is looked at what optimizers have
LOOKS = (3, 5, 9, 11, 13)  # steps after which it is looked at what stays in memory
ADDITIONS = ("add", "add_")
FEW = 5  # steps that are enough …
TIMED = 64  # passes that the program may take the time of
LONG = 6.0  # … after so many seconds of processor time, or more if an evaluation may come


class RealSizes(AssumedSizes):
    """On a GPU with values, sizes are what they are."""

    def answer(self, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Leaves all ops to the GPU."""
        return NotImplemented

    def follow(
        self, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Nothing is assumed."""


class CheckWatch(StepWatch):  # type: ignore[no-untyped-call]
    """Watches until the program has shown enough, or to its end."""

    def __init__(
        self, card: Card, *, hollow: bool, stop: str, steps: int = MOST, ends: bool = True
    ) -> None:
        self.tape = Tape(stop, self._innermost, self._now)
        self.races = Races(self.tape.site)
        super().__init__(
            card, steps, sizes=AssumedSizes() if hollow else RealSizes(), recorder=self.tape
        )
        self.hollow = hollow
        self._ends = ends  # whether it ends the program, and its epochs
        self.calls: list[Call] = []
        self.passes: list[tuple[int, bool, int]] = []  # where, whether with gradients, network
        self.networks: dict[int, nn.Module] = {}
        self.registered: dict[int, Made] = {}  # when each parameter was given to a module
        self.optimizers: dict[int, tuple[Made, Optimizer]] = {}
        self.untrained: dict[tuple[str, tuple[str, ...]], Untrained] = {}
        self.grown: Counter[Site] = Counter()  # lines that add to a graph of earlier steps
        self.with_graph: set[int] = set()  # addresses of tensors that keep a graph
        self.inputs: dict[int, int] = {}  # bytes of what each module was given last
        self.levels: list[tuple[int, int]] = []  # bytes after each step: the peak, what is held
        self.copies: list[Look] = []  # of weights
        self.copied: set[int] = set()  # ids of parameters that were deep-copied
        self._order = 0
        self._sequence = 0  # the number of autograd's next node when the last step ended
        self._since = process_time()
        self._iterators: WeakKeyDictionary[Any, tuple[int, int]] = WeakKeyDictionary()
        self._loads_batches = False
        self._draws = False
        self._timed = -1  # passes before the program read a clock the last time
        self._evaluated = 0  # passes without gradients since the last one with them
        self._workers = Workers()

    @property
    def leaves_out(self) -> bool:
        """Rules look at each pass."""
        return False

    def _innermost(self) -> str:
        return self.modules.innermost

    def _now(self) -> str:
        return "optimizer" if self._in_optimizer else "forward"

    # ---- what is noted ----

    def note(self, name: str, info: dict[str, Any]) -> None:
        """A call that a rule may ask about."""
        site = self.tape.site()
        self._order += 1
        if name == "deepcopy":
            self.copied.add(info["parameter"])
            return
        if name == "parameter":
            self.registered[id(info["parameter"])] = Made(self._order, site)
            return
        if name == "optimizer":
            self.optimizers[id(info["optimizer"])] = Made(self._order, site), info["optimizer"]
        self.calls.append(Call(name, site, self.tape.position, info))
        if name == "clock":
            self._timed = len(self.passes)
        if name == "iterate":
            self._workers.begin(info["loader"])
        if name == "empty_cache" and self.ledger.events:
            self.tape.waits(name)

    @property
    def _looks_away(self) -> bool:
        """Whether a long evaluation is under way, of which enough was seen."""
        return self._evaluated > SEEN and bool(self.steps.optimizers)

    def _drawing(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """For torch.jit.trace: what runs there is no step, and no evaluation."""

        @wraps(plain)
        def drawn(*args: Any, **kwargs: Any) -> Any:
            before, self._draws = self._draws, True
            try:
                return plain(*args, **kwargs)
            finally:
                self._draws = before

        return drawn

    def _hear(self, event: Event) -> None:
        if not self._looks_away:
            super()._hear(event)

    def _run(
        self, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[Tensor]
    ) -> Any:
        if self._looks_away:
            result = self.sizes.answer(op, args, kwargs)
            if result is NotImplemented:
                result = op.op(*args, **kwargs)
                self.sizes.follow(op, args, kwargs, result)
            return result
        self.tape.running(op, [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)])
        if op.name in ADDITIONS and op.of_pytorch:
            self._look_for_sums(args)
        run = partial(super()._run, op, args, kwargs, inputs)
        try:
            return self.races.around(op.op, args, kwargs, run) if self.races.looks else run()
        finally:
            self.tape.done()

    def _look_for_sums(self, args: tuple[Any, ...]) -> None:
        """Whether a number with a graph of earlier steps gets more of it."""
        total, more = args[0], args[1]
        if self.modules.path or not self._sequence or in_backward() or not torch.is_grad_enabled():
            return
        if all(isinstance(t, Tensor) and t.dim() == 0 and t.requires_grad for t in (total, more)):
            node = total.grad_fn
            if node is not None and node._sequence_nr() < self._sequence:
                self.grown[self.tape.site()] += 1

    def _learn(self, root: nn.Module, inputs: Any) -> None:
        super()._learn(root, inputs)
        if next(root.parameters(), None) is not None:
            self.networks[id(root)] = root

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        outside = not self.modules.path
        super()._enter(module, inputs)
        self.inputs[id(module)] = sum(map(_bytes, inputs if isinstance(inputs, tuple) else ()))
        if outside and id(module) in self.networks and not self._draws:
            at, grad = self.tape.position, torch.is_grad_enabled()
            self._evaluated = 0 if grad else self._evaluated + 1
            self.passes.append((at, grad, id(module)))
            info = passed(module, self._given) | {"event": self.ledger.events}
            self.calls.append(Call("forward", self.tape.site(), at, info))

    def _pass_forward(self, inputs: Any) -> None:
        if self.ledger.events and not self._draws:  # nor is a look at shapes on the CPU a step
            super()._pass_forward(inputs)

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        super()._leave(module, inputs, output)
        if not self.modules.path and id(module) in self.networks and self.calls:
            leaves = torch.utils._pytree.tree_leaves(output)
            requires = any(isinstance(t, Tensor) and t.requires_grad for t in leaves)
            last = next((c for c in reversed(self.calls) if c.name == "forward"), None)
            if last and last.info["network"] == id(module):
                last.info["requires"] = requires

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        super()._before_step(optimizer, args, kwargs)
        self._evaluated = 0
        info = {"optimizer": id(optimizer), "kind": type(optimizer).__name__}
        info |= {"defaults": dict(optimizer.defaults), "bytes": size_of(optimizer)}
        info |= {"parameters": len(trained_by(optimizer)), "graded": graded(optimizer)}
        info |= {"dtype": dtype_of(optimizer)}
        self.calls.append(Call("optimizer.step", self.tape.site(), self.tape.position, info))
        if len(self.steps.marks[STEP]) in SETTLED:
            networks = list(self.networks.values())
            all_made = {key: made for key, (made, _) in self.optimizers.items()}
            all_of_them = [one for _, one in self.optimizers.values()]
            for one in untrained(networks, all_of_them, self.registered, all_made):
                self.untrained[one.owner, one.names] = one

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._sequence = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        steps = len(self.steps.marks[STEP])
        if steps in LOOKS[:2]:
            self.with_graph |= kept_graphs()
        if steps in LOOKS:
            now = set(spares(list(self.networks.values()), self.copied))
            self.copies.append(Look(self.tape.position, self.ledger.events, now))
        self.levels.append((torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved()))
        super()._after_step(optimizer, args, kwargs)

    # ---- how much is run ----

    def end_if_enough(self) -> None:
        """Ends the program once it has shown enough."""
        if not self._ends:
            return
        evaluates = self.steps.unit == FORWARD and self.steps.trains  # before the first step
        steps, spent = 0 if evaluates else len(self.steps.ends), process_time() - self._since
        infers = self.steps.unit == FORWARD  # or training is still to come
        long = spent > LONG * (4 if infers else 2 if self._loads_batches else 1)
        if (self.steps.enough and not self._is_timed) or (steps >= FEW and long):
            raise Enough

    @property
    def _is_timed(self) -> bool:
        """Whether the program reads a clock after some more passes, most likely."""
        since = len(self.passes) - self._timed
        return self._timed >= 0 and 2 <= since < TIMED and process_time() - self._since < LONG / 2

    def _next_batch(self, fetch: Callable[[Any], Any], iterator: Any) -> Any:
        done = len(self.steps.ends) * (self.steps.unit == STEP), len(self.passes)
        begun = self._iterators.setdefault(iterator, done)
        self._loads_batches = True
        if self._ends and _in_a_for_loop(sys._getframe(2)):
            steps, passes = done[0] - begun[0], self.passes[begun[1] :]
            evaluated = not steps and len(passes) >= EVALUATED and not any(p[1] for p in passes)
            long = steps >= FEW and process_time() - self._since > LONG
            if steps >= PASS or long or evaluated:
                raise StopIteration
        with _disable_current_modes():  # a data set's ops are not slowed down by the watch
            batch = fetch(iterator)
            self.tape.has_loaded(batch)
        return batch

    @contextmanager
    def watching(self) -> Iterator[CheckWatch]:
        """Watches inside the block, from the first op on."""
        heard = Heard(self.note, self.tape, self._going_back, self.races.begin)
        with ExitStack() as stack:
            stack.enter_context(super().watching())
            stack.enter_context(heard.hearing())
            stack.enter_context(self._workers.measuring())
            loader: Any = torch.utils.data.dataloader._BaseDataLoaderIter
            fetch, begin = loader.__next__, loader._reset

            def reset(iterator: Any, *args: Any, **kwargs: Any) -> Any:
                self._iterators.pop(iterator, None)  # one that persists begins another epoch
                return begin(iterator, *args, **kwargs)

            def next_batch(iterator: Any) -> Any:
                return self._next_batch(fetch, iterator)

            stack.enter_context(patch.object(torch.jit, "trace", self._drawing(torch.jit.trace)))
            stack.enter_context(patch.object(loader, "__next__", next_batch))
            stack.enter_context(patch.object(loader, "_reset", reset))
            self.record()
            yield self

    def _went_back(self) -> None:
        self.races.all_waited()
        try:
            super()._went_back()
        except Enough:  # a step of many passes, of which some are enough
            if self._ends:
                raise

    def _going_back(self) -> None:
        self._evaluated = 0
        self.races.all_waited()
        self.tape.backward_site = self.tape.site()

    # ---- what the rules are given ----

    def trace(self) -> Trace:
        """What was seen."""
        self.steps.end()
        marks = [mark.entry for mark in self.steps.ends]
        begin = self.steps.first_pass.entry if self.steps.first_pass else 0
        if self.steps.unit != FORWARD:
            begin = min([c.at for c in self.calls if c.name in ("iterate", "forward")] or [0])
        spans = [Span(a, b) for a, b in zip([begin, *marks], marks, strict=False) if b > a]
        trace = Trace(
            seen=self.tape.seen,
            calls=self.calls,
            steps=spans,
            evaluations=self._evaluations(marks),
            unit=self.steps.unit,
            blocks=self.ledger.blocks,
            events=self.step_marks,
            hollow=self.hollow,
            facts=self._facts(),
        )
        trace.fixed_host_times()
        return trace

    def _evaluations(self, marks: list[int]) -> list[Span]:
        if self.steps.unit == FORWARD:
            return []
        spans = []
        for (begin, grad, _), (end, *_) in zip(self.passes, self.passes[1:], strict=False):
            if not grad and not any(begin < mark <= end for mark in marks):
                spans.append(Span(begin, end))
        return spans

    def _beside(self, call: Call) -> tuple[float, int]:
        """Seconds in which a worker of this loader makes a batch, and how many workers it has."""
        loader = call.info["loader"]
        return self._workers.seconds(loader), loader.num_workers

    def _facts(self) -> dict[str, Any]:
        iterated = [call for call in self.calls if call.name == "iterate"]
        loaders = [call.info["loader"] for call in iterated]
        return {
            "early_reads": self.tape.early_reads,
            "overwritten": self.tape.overwritten,
            "races": list(self.races.found),
            "networks": self.networks,
            "untrained": list(self.untrained.values()),
            "grown_graphs": dict(self.grown),
            "with_graph": self.with_graph,
            "levels": self.levels,
            "names": self.modules.names,
            "inputs": self.inputs,
            "copies": self.copies,
            "on_host": self.on_host,
            "beside": {c.site.own: self._beside(c) for c in iterated},
            "draw_the_same": {
                id(loader) for loader in loaders if self._workers.draw_the_same(loader)
            },
        }


def _bytes(given: Any) -> int:
    return given.nbytes if isinstance(given, Tensor) else 0


def kept_graphs() -> set[int]:
    """The addresses of all tensors on a GPU that have a graph."""
    found = set()
    with _disable_current_modes():  # a compiler's fake tensors dispatch even `is_cuda`
        for one in gc.get_objects():
            if issubclass(type(one), Tensor):
                with suppress(NotImplementedError, RuntimeError):  # of other layouts, or fake
                    if one.is_cuda and one.grad_fn is not None:
                        found.add(one.untyped_storage().data_ptr())
    return found


def passed(module: nn.Module, optimized: set[int]) -> dict[str, Any]:
    """What is known about a pass forward when it begins."""
    return {
        "network": id(module),
        "kind": type(module).__name__,
        "gradients": torch.is_grad_enabled(),
        "training": module.training,
        "trained": any(id(parameter) in optimized for parameter in module.parameters()),
        "depends": _depends(module),
        "requires": False,
    }


def _depends(module: nn.Module) -> str:
    """What in it depends on the mode, and is in the same mode as the whole."""
    for part in module.modules():
        if part.training != module.training:
            continue
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0:
            return "dropout"
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.track_running_stats:
            return "batch norm"
    return ""


def _in_a_for_loop(frame: Any) -> bool:
    """Whether the caller is at the head of a `for` loop."""
    return frame is not None and frame.f_lasti in _heads(frame.f_code)


@cache
def _heads(code: CodeType) -> frozenset[int]:
    return frozenset(i.offset for i in dis.get_instructions(code) if i.opname == "FOR_ITER")
