"""Records what a program does on virtual GPUs, step by step.

with WorkRecorder() as recorder:
    step()
    recorder.mark_step()
work = recorder.step(-1)
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from time import thread_time
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions
from torch.utils import _python_dispatch as dispatch

from anydevice.errors import UsageError
from anydevice.plan.time import ops
from anydevice.plan.time.collectives import exchange_of
from anydevice.plan.time.overloads import Overload, overload_of
from anydevice.plan.time.work import Entry, HostTime, Op, Product, Transfer, Wait, Work
from anydevice.virtual.compiled.launches import Launch, inside
from anydevice.virtual.events import HOST, Event, listening

HEARD = ("transfer", "synchronise")
TIMES = 30  # how often each op on the host is timed; the quickest counts
PRECISION: Any = torch._C._get_fp32_precision_getter
PLAIN = (bool, int, float, str, complex, torch.dtype, torch.device, torch.layout)
Mode: Any = dispatch.TorchDispatchMode
StorageWeakRef: Any = reductions.StorageWeakRef


class WorkRecorder(Mode):  # type: ignore[misc]
    """Notes each op of this thread, each transfer and each wait; keeps sizes, no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self._entries: list[Entry] = []
        self._marks: list[int] = [0]
        self._listening = ExitStack()
        self._stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)
        self._seen: dict[int, Any] = {}
        self._given: list[Tensor] = []  # of the current op
        # Seconds on the host by op and elements: asking for the time takes longer than most ops.
        self._host_times: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        self._silent: dict[Any, Op] = {}  # one for all calls of an op that launches nothing
        self._forms: dict[Any, Form] = {}  # by what is the same for calls that are alike
        self._moved = False  # whether the current op was a transfer
        self._loads = False  # whether the program fetches a batch just now
        self._quickest = math.inf  # seconds for a batch

    def __enter__(self) -> "WorkRecorder":
        self._listening.enter_context(listening(self.hear, HEARD))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._listening.close()

    def mark_step(self) -> None:
        """Marks the end of a step."""
        self._marks.append(len(self._entries))

    @property
    def steps(self) -> int:
        """How many steps have ended."""
        return len(self._marks) - 1

    def step(self, index: int = -1) -> Work:
        """One step's work: `recorder.step(-1)` is the last one that ended."""
        if not -self.steps <= index < self.steps:
            raise UsageError(
                f"expected one of {self.steps} recorded steps, got {index}: call mark_step() "
                "after each optimizer step."
            )
        end = index % self.steps + 1
        return Work(self._entries[self._marks[end - 1] : self._marks[end]])

    def add(self, entry: Entry) -> None:
        """Notes what was done last; a subclass may note more about it."""
        self._entries.append(entry)

    @property
    def position(self) -> int:
        """How many entries there are so far."""
        return len(self._entries)

    def between(self, begin: int, end: int) -> Work:
        """The work between two positions."""
        return Work(self._entries[begin:end])

    @contextmanager
    def loading(self) -> Iterator[None]:
        """The context in which a batch is fetched: the quickest fetch so far is noted as data time.

        Times on the host are of this thread's own computing, since the machine may be busy: what
        workers of a DataLoader do meanwhile is not counted. The quickest, since the first fetch
        starts them.
        """
        begin, self._loads = thread_time(), True
        try:
            yield
        finally:
            self._loads = False
            self._quickest = min(self._quickest, thread_time() - begin)
            self.add(HostTime(self._quickest, "data"))

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the op and notes it."""
        if types and any(map(dispatch.is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # the ops inside come here next
        kwargs = kwargs or {}
        return self.run(overload_of(op), args, kwargs, tensors_in((*args, *kwargs.values())))

    def run(
        self,
        op: Overload,
        args: Any,
        kwargs: Any,
        inputs: list[Tensor],
        call: Callable[..., Any] | None = None,
    ) -> Any:
        """Runs the op with these tensors among its arguments, or `call` in its place; notes it."""
        self._given, self._moved = inputs, False
        on_gpu = device_of(inputs) is not None
        known: list[float] = []
        if inputs and not on_gpu:
            known = self._host_times[op.name, sum(t.numel() for t in inputs)]
        timed = not on_gpu and not self._loads and len(known) < TIMES
        begin = thread_time() if timed else 0.0
        try:
            result = (call or op.op)(*args, **kwargs)
        finally:
            self._given = []  # they may be freed
        if timed:
            known.append(thread_time() - begin)
        outputs = tensors_in((result,))
        here = device_of((*outputs, *inputs))
        if op.collective:
            self._exchange(op.op, args, kwargs, result)
        elif here is None:
            if op.of_pytorch and not self._loads:
                self.add(HostTime(min(known), op.name))
        elif self._moved and op.name in ("_to_copy", "copy_"):
            self._arrived(outputs)
        else:
            self.add(self._op(op, here, (args, kwargs, result), inputs, outputs))
        return result

    def _arrived(self, outputs: list[Tensor]) -> None:
        """Adds what a copy wrote, which is known after the op."""
        last = self._entries[-1]
        if isinstance(last, Transfer):
            self._entries[-1] = replace(last, writes=self._storages(outputs))

    def _op(
        self, op: Overload, device: int, call: Any, inputs: list[Tensor], outputs: list[Tensor]
    ) -> Op:
        args, kwargs, _ = call
        name, backward = op.name, in_backward()
        if op.silent:
            key = name, device, backward, inside()
            if key not in self._silent:
                self._silent[key] = Op(name, device, 0, "", (), 0.0, 0, backward, 0, host=inside())
            return self._silent[key]
        written = op.writes(args, kwargs)
        alike = _signature(op, args, kwargs, inputs, outputs)
        form = self._forms.get(alike)
        if form is None:
            form = _form(op, call, inputs, outputs, written)
            if alike is not None:
                self._forms[alike] = form
        unit, products, moved, kernels, tensors, aligned, layout = form
        return Op(
            *(name, device, self._stream(device), unit, products, moved, kernels),
            *(backward, tensors, aligned, layout),
            reads=self._storages(inputs),
            writes=self._storages((*outputs, *written)),
            host=inside(),
        )

    def launched(self, launch: Launch) -> None:
        """Notes a kernel that was compiled."""
        self.add(
            Op(
                name=launch.name,
                device=launch.device,
                stream=self._stream(launch.device),
                unit=_unit(launch),
                products=tuple(Product(**vars(each)) for each in launch.products),
                bytes=launch.bytes,
                kernels=launch.kernels,
                backward=in_backward(),
                tensors=0,
                reads=self._storages(launch.reads),
                writes=self._storages(launch.writes),
                host=launch.host,
                fill=launch.fill,
            )
        )

    def _exchange(self, op: Any, args: Any, kwargs: Any, result: Any) -> None:
        if (exchange := exchange_of(op, args, kwargs, result)) is None:
            return
        touched = self._storages(tensors_in((*args, *kwargs.values(), result)))
        stream = self._stream(exchange.device)
        self.add(replace(exchange, reads=touched, writes=touched, stream=stream))

    def _storages(self, tensors: Iterable[Tensor]) -> tuple[int, ...]:
        """Ids of the tensors' storages; only dense tensors have one.

        Each is kept by a weak reference: what is freed leaves its id to no other.
        """
        found = {}
        for tensor in tensors:
            if tensor.layout == torch.strided:
                storage = tensor.untyped_storage()
                found[storage._cdata] = storage
        for id_, storage in found.items():
            if id_ not in self._seen:
                self._seen[id_] = StorageWeakRef(storage)
        return tuple(found)

    def hear(self, event: Event) -> None:
        """Notes a transfer, or that the host waits for a GPU."""
        if event.kind == "transfer" and event.source != event.destination:
            self._moved = True
            device = event.source if event.destination == HOST else event.destination
            touched = self._storages(self._given)
            self.add(
                Transfer(
                    event.bytes,
                    event.source,
                    event.destination,
                    event.pinned,
                    event.blocking,
                    self._stream(device),
                    reads=touched,
                    writes=touched,
                )
            )
        elif event.kind == "synchronise" and not self._is_of_the_last_transfer(event):
            self.add(Wait(event.source, event.op))

    def _is_of_the_last_transfer(self, event: Event) -> bool:
        """A blocking transfer is reported as two events."""
        return event.op.startswith("aten::") and bool(
            self._entries and isinstance(self._entries[-1], Transfer) and self._entries[-1].blocking
        )


def in_backward() -> bool:
    """Whether this thread is inside a backward pass."""
    return torch._C._current_graph_task_id() != -1


Form = tuple[str, tuple[Product, ...], float, int, int, bool, float]


def _form(
    op: Overload, call: Any, inputs: list[Tensor], outputs: list[Tensor], written: list[Tensor]
) -> Form:
    """What an op does, apart from where: an Op's unit and what follows it."""
    args, kwargs, result = call
    lists = [arg for arg in args if isinstance(arg, list) and arg and _tensors(arg)]
    products = ops.products(op, args, kwargs, result)
    there = [t for t in inputs if t.is_cuda]
    floats = there or outputs
    return (
        ops.unit_of(products, floats),
        products,
        ops.traffic(op.name, there, outputs, written),
        ops.kernels(op.name, products, lists),
        max(map(len, lists), default=0),
        not products or ops.is_aligned(products, floats[0].element_size()),
        ops.layout_bytes(products, floats, outputs),
    )


def _signature(
    op: Overload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    inputs: list[Tensor],
    outputs: list[Tensor],
) -> Any:
    """All that `_form` depends on; None if calls of this one cannot be compared."""
    if op.mutable and len({id(tensor) for tensor in inputs}) < len(inputs):
        return None  # it reads what it writes
    settings = [PRECISION("cuda", kind) for kind in ("matmul", "conv", "rnn")]
    try:
        values = (*args, *kwargs.items(), *outputs)
        return id(op), *settings, len(outputs), tuple([_sized(value) for value in values])
    except (TypeError, RuntimeError):  # a sparse tensor has no strides
        return None


def _sized(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.is_cuda
    if isinstance(value, (list, tuple)):
        return tuple([_sized(part) for part in value])
    if value is None or isinstance(value, PLAIN):
        return type(value), value
    raise TypeError


def device_of(tensors: Iterable[Tensor]) -> int | None:
    """The first GPU that one of them is on."""
    for tensor in tensors:
        if tensor.is_cuda:
            device: int = tensor.get_device()
            return device
    return None


def tensors_in(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among an op's arguments or results, also those in lists."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
    return found


def _tensors(values: list[Any]) -> bool:
    return all(isinstance(value, Tensor) for value in values)


def _unit(launch: Launch) -> str:
    """The arithmetic of a kernel's products: by default the first floating-point tensor's."""
    if launch.unit:
        return launch.unit
    floats = (each.dtype for each in launch.reads if each.dtype.is_floating_point)
    return str(next(floats, torch.float32)).removeprefix("torch.")
