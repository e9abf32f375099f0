"""Records the work of a program with the line, the module and the tensors of each entry."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import get_ident
from time import thread_time
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions
from torch.nn.parameter import is_lazy

from anydevice.check.trace import NOWHERE, Seen, Site, Source
from anydevice.plan.time.overloads import Overload
from anydevice.plan.time.recorder import WorkRecorder, in_backward
from anydevice.plan.time.work import Entry, HostTime, Transfer, Wait
from anydevice.virtual.events import HOST, Event

StorageWeakRef: Any = reductions.StorageWeakRef
FACTORIES = {
    *("zeros", "ones", "full", "arange", "eye", "linspace", "rand", "randn", "randint", "randperm"),
    *("zeros_like", "ones_like", "full_like", "rand_like", "randn_like"),
    *("triu", "tril", "bernoulli", "normal"),
}
MAKERS = {*FACTORIES, "lift_fresh"}
BETWEEN = (  # an op and its caller
    *("/anydevice/", "torch/_ops.py", "torch/_compile.py", "torch/_dynamo/"),
    *("torch/utils/_python_dispatch.py", "torch/utils/_stats.py", "/unittest/mock.py"),
)
SAMPLE = 1024  # elements, by which it is seen whether values have changed


class Tape(WorkRecorder):
    """A recorder that also keeps, for each entry, what the rules need.

    Args:
        stop: The file that calls the program.
        module: The path of the module that is running.
        phase: Whether an optimizer is running.
    """

    def __init__(self, stop: str, module: Callable[[], str], phase: Callable[[], str]) -> None:
        super().__init__()
        self.seen: list[Seen] = []
        self.early_reads: list[tuple[Site, Site]] = []  # of a copy that may not have arrived
        self.overwritten: list[tuple[Site, Site]] = []  # while a copy from it is under way
        self.backward_site = NOWHERE
        self._stop, self._module, self._phase = stop, module, phase
        self._thread = get_ident()
        self._called = ""
        self._inputs: list[Tensor] = []
        self._loading = False
        self._flying: dict[int, tuple[Any, Site]] = {}  # storages on the host that wait for bytes
        self._leaving: dict[int, tuple[Any, Site]] = {}  # those that are being read
        self._made: dict[int, tuple[Any, Source]] = {}  # storages, with who made them
        self._known: dict[int, tuple[Any, int]] = {}  # a number for each storage
        self._numbers = 0
        self._loaded: dict[int, Any] = {}  # storages of the latest batches

    def site(self) -> Site:
        """Where the program is."""
        if in_backward():
            return self.backward_site
        return Site.of(sys._getframe(1), self._stop)

    def hear(self, event: Event) -> None:
        """Notes a transfer or a wait of the program's own thread, and of its backward passes."""
        if get_ident() == self._thread or in_backward():
            super().hear(event)

    # ---- entries ----

    def add(self, entry: Entry) -> None:
        """Notes an entry with its site."""
        super().add(entry)
        phase = "backward" if in_backward() else "data" if self._loading else self._phase()
        shapes = tuple(tuple(tensor.shape) for tensor in self._inputs[:4])
        dtype = str(self._inputs[0].dtype).removeprefix("torch.") if self._inputs else ""
        seen = Seen(entry, self.site(), self._called, self._module(), phase, shapes, dtype)
        if isinstance(entry, Transfer | Wait):
            caller = _caller(sys._getframe(1))
            seen = replace(seen, caller=caller.f_code.co_filename if caller else "")
        self.seen.append(seen)
        self._look_at_copies(entry)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """The context in which a batch is fetched."""
        begin, before, self._loads, self._loading = thread_time(), self._loading, True, True
        try:
            yield
        finally:
            self._loads = self._loading = before
        self._inputs, self._called = [], "data"
        if not before:
            self._loading = True
            self.add(HostTime(thread_time() - begin, "data"))
            self._loading = False

    def running(self, op: Overload, inputs: list[Tensor]) -> None:
        """An op is about to run, perhaps one that another part of the watch answers."""
        self._called = op.name
        self._inputs = [tensor for tensor in inputs if not is_lazy(tensor)]

    def done(self) -> None:
        """The op has run."""
        self._called, self._inputs = "", []

    def waits(self, what: str) -> None:
        """The host waits for the GPU in a call that is no op."""
        self._called, self._inputs = what, []
        self.add(Wait(torch.cuda.current_device(), what))
        self.done()

    def has_loaded(self, batch: Any) -> None:
        """A DataLoader has given this."""
        self._loaded = {key: ref for key, ref in self._loaded.items() if not ref.expired()}
        for leaf in torch.utils._pytree.tree_leaves(batch):
            if isinstance(leaf, Tensor) and _storage(leaf):
                self._loaded[_storage(leaf)] = StorageWeakRef(leaf.untyped_storage())

    def arrived(self) -> None:
        """All copies that were under way have arrived."""
        self._flying.clear()
        self._leaving.clear()

    def run(
        self,
        op: Overload,
        args: Any,
        kwargs: Any,
        inputs: list[Tensor],
        call: Callable[..., Any] | None = None,
    ) -> Any:
        """Runs the op and notes it, and what it does to copies that are under way."""
        self._look_at_reads(op, args, kwargs)
        before = len(self.seen)
        result = super().run(op, args, kwargs, inputs, call)
        self._look_at_made(result)
        for at in range(before, len(self.seen)):
            self._look_at_sent(at, result)
        return result

    # ---- copies ----

    def _look_at_copies(self, entry: Entry) -> None:
        """A wait ends all copies; so does a copy that the host waits for."""
        waits = isinstance(entry, Wait) or (isinstance(entry, Transfer) and entry.blocking)
        if waits:
            self.arrived()

    def _look_at_reads(self, op: Overload, args: Any, kwargs: Any) -> None:
        if not (self._flying or self._leaving) or not op.of_pytorch:
            return
        if any(tensor.is_cuda for tensor in self._inputs):
            return  # a copy on the same stream comes after those before
        schema = op.op._schema
        views = schema.returns and all(
            r.alias_info is not None and not r.alias_info.is_write for r in schema.returns
        )
        if views or self._called in ("is_pinned", "detach", "record_stream", "lift_fresh"):
            return
        for tensor in self._inputs:
            self.reads(tensor)
        for tensor in op.writes(args, kwargs):
            leaving = self._leaving.get(_storage(tensor))
            if leaving and not leaving[0].expired():
                self.overwritten.append((leaving[1], self.site()))

    def reads(self, tensor: Tensor) -> None:
        """The host reads a tensor's values."""
        flying = self._flying.get(_storage(tensor)) if not tensor.is_cuda else None
        if flying and not flying[0].expired():
            self.early_reads.append((flying[1], self.site()))

    def _look_at_made(self, result: Any) -> None:
        if self._called not in MAKERS or not isinstance(result, Tensor) or result.is_cuda:
            return
        if storage := _storage(result):
            name = self._called.replace("lift_fresh", "tensor")
            made = Source((), name, self.position, self.site().own)
            self._made[storage] = StorageWeakRef(result.untyped_storage()), made

    def _look_at_sent(self, at: int, result: Any) -> None:
        one = self.seen[at]
        entry = one.entry
        if not isinstance(entry, Transfer):
            return
        self.seen[at] = one = replace(one, entry=self._entries[at])  # with what it wrote
        if entry.source == HOST:
            given = next((t for t in reversed(self._inputs) if not t.is_cuda), None)
            if given is not None and _storage(given):
                self.seen[at] = replace(one, source=self._source(given))
                if entry.pinned and not entry.blocking:
                    ref = StorageWeakRef(given.untyped_storage())
                    self._leaving[_storage(given)] = ref, one.site
        elif entry.destination == HOST and entry.pinned and not entry.blocking:
            arrives = result if isinstance(result, Tensor) else None
            if arrives is not None and not arrives.is_cuda and _storage(arrives):
                ref = StorageWeakRef(arrives.untyped_storage())
                self._flying[_storage(arrives)] = ref, one.site

    def _source(self, tensor: Tensor) -> Source:
        storage = _storage(tensor)
        known = self._known.get(storage)
        if known is None or known[0].expired():
            self._numbers += 1
            known = StorageWeakRef(tensor.untyped_storage()), self._numbers
            self._known[storage] = known
        made = self._made.get(storage)
        values = _sample(tensor)
        of = (known[1], tensor.storage_offset(), tuple(tensor.shape), values)
        source = made[1] if made and not made[0].expired() else Source(of)
        ref = self._loaded.get(storage)
        return replace(source, tensor=of, loaded=ref is not None and not ref.expired())


def _caller(frame: Any) -> Any:
    """The frame that called the op: the program's own, or of a function of PyTorch or a library."""
    while frame is not None and any(part in frame.f_code.co_filename for part in BETWEEN):
        frame = frame.f_back
    return frame


def _sample(tensor: Tensor) -> int:
    """A number that changes if the values do, most likely; it looks at a part of them."""
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach()[:1]
        some = flat.reshape(-1)[:: max(1, flat.numel() // SAMPLE)]
        return hash(some.contiguous().view(torch.uint8).numpy().tobytes()) if some.numel() else 0


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else 0
