"""Random numbers on the host that nobody has looked at yet, as a new network's weights."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.multiprocessing import reductions
from torch.utils._python_dispatch import _disable_current_modes

from anydevice.plan.time.overloads import Overload
from anydevice.virtual import core
from anydevice.virtual.compiled import ahead

# Note [Numbers that nobody looks at]
# A program that makes its network on the host draws a random number for each weight, and moves the
# network to the GPU, which has no values. For a billion weights that takes ten seconds and the
# memory. So a large tensor that is filled with random numbers is left as it is, with a list of what
# would be done to it; and the host's generator is put where it would be after that, which takes a
# tenth of the time. All later numbers are the same.
#
# Most tensors are freed once they have been copied to the GPU. Where anything else could look at
# one, the list is done first, each with the generator's state of its time: so what is read is what
# it would be. That is every op but views and copies to a GPU, and what reads memory without an op
# (READS); a thread that begins and a process that is forked could look at all of them, except for
# a progress bar's thread and a compiler's process.

LEAST = 1 << 14  # elements, from which on a tensor is left as it is
DRAWS = ("uniform_", "normal_")
CHANGES = ("fill_", "zero_", "mul_", "add_", "sub_", "div_", "clamp_", "erfinv_", *DRAWS)
COPIES = ("_to_copy", "clone")
LOOK = ("_local_scalar_dense", "resize_", "resize_as_", "set_")  # among those without a kernel
FORM = {"dtype", "device", "layout", "memory_format"}
DRAWN = {torch.float32: 1, torch.float64: 2}  # draws of 32 bits for each number
READS = (
    *("numpy", "__array__", "tolist", "data_ptr", "storage", "__dlpack__", "__reduce_ex__"),
    *("share_memory_", "_typed_storage", "apply_", "map_"),
)
PROGRESS_BAR = "tqdm._monitor"  # which any loop with tqdm starts
StorageWeakRef: Any = reductions.StorageWeakRef
Change = Callable[[Tensor], object]  # of a tensor that has the bytes of the whole storage


@dataclass
class _Left:
    """A storage, and what is to be done to it."""

    storage: Any
    changes: list[Change]


class Unfilled:
    """The tensors that were left as they are.

    >>> unfilled.instead(op, args, kwargs, inputs)  # its result  # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._left: dict[int, _Left] = {}  # by storage
        self._out: dict[int, Any] = {}  # storages whose memory the program may know by address
        self.begins = True  # whether more tensors are left as they are

    def __bool__(self) -> bool:
        return bool(self._left)

    def instead(
        self, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[Tensor]
    ) -> Any:
        """The result of an op that need not run; NotImplemented if it has to."""
        if self.begins and args and isinstance(args[0], Tensor):
            if op.name in CHANGES and self._notes(op, args, kwargs, inputs):
                return args[0]
            if op.name in COPIES and (copy := self._copy(args[0], kwargs)) is not None:
                return copy
        to_gpu = op.name == "_to_copy" and torch.device(kwargs.get("device") or "cpu").type != "cpu"
        looks = not op.silent or op.name in LOOK
        if looks and not (to_gpu or (op.name == "copy_" and args[0].is_cuda)):
            for tensor in inputs:
                if not tensor.is_cuda:
                    self.fill(tensor)
        return NotImplemented

    def _notes(
        self, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[Tensor]
    ) -> bool:
        """Whether an op in place is only noted."""
        tensor, *others = args
        if len(inputs) > 1 or kwargs.get("generator") is not None:
            return False
        if op.name in DRAWS:
            if not _is_whole(tensor) or self._is_out(tensor):
                return False
            self._left[_id(tensor)] = _Left(StorageWeakRef(tensor.untyped_storage()), [])
        left = self._of(tensor)
        if left:
            left.changes.append(_change(op, tensor, others, kwargs))
        return left is not None

    def _copy(self, source: Tensor, kwargs: dict[str, Any]) -> Tensor | None:
        """A copy on the host of a tensor that is left as it is: so is the copy."""
        left = self._of(source)
        if not left or not source.is_contiguous() or not set(kwargs) <= FORM:
            return None
        copy = torch.empty_like(source, **kwargs)
        if copy.device.type != "cpu" or not copy.is_contiguous():
            return None
        size, geometry = source.untyped_storage().nbytes(), _geometry(source)
        changes, dtypes = list(left.changes), (source.dtype, copy.dtype)

        def fill(whole: Tensor) -> None:
            values = torch.empty(size, dtype=torch.uint8)
            for change in changes:
                change(values)
            values = values.view(dtypes[0]).as_strided(*geometry)
            whole.view(dtypes[1]).copy_(values.reshape(-1))

        self._left[_id(copy)] = _Left(StorageWeakRef(copy.untyped_storage()), [fill])
        return copy

    def fill(self, tensor: Tensor) -> None:
        """Does what was to be done to this one."""
        if left := self._of(tensor):
            del self._left[_id(tensor)]
            _fill(left)

    def fill_all(self) -> None:
        """Does it to all."""
        while self._left:
            _, left = self._left.popitem()
            if not left.storage.expired():
                _fill(left)

    def _of(self, tensor: Tensor) -> _Left | None:
        if not self._left or tensor.layout != torch.strided:
            return None
        left = self._left.get(_id(tensor))
        if left and left.storage.expired():
            del self._left[_id(tensor)]
            return None
        return left

    def _is_out(self, tensor: Tensor) -> bool:
        known = self._out.get(_id(tensor))
        return known is not None and not known.expired()

    @contextmanager
    def seen(self) -> Iterator[None]:
        """Inside the block, what reads memory without an op is seen."""

        def reading(read: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(read)
            def filled(tensor: Any, *args: Any, **kwargs: Any) -> Any:
                if not tensor.is_cuda:
                    self.fill(tensor)
                    if self.begins and _is_whole(tensor):
                        self._out[_id(tensor)] = StorageWeakRef(tensor.untyped_storage())
                return read(tensor, *args, **kwargs)

            return filled

        start = threading.Thread.start

        def started(thread: threading.Thread) -> None:
            if type(thread).__module__ != PROGRESS_BAR:
                self.fill_all()
            start(thread)

        with ExitStack() as stack:
            for name in READS:
                plain = getattr(Tensor, name)
                stack.enter_context(patch.object(Tensor, name, reading(plain)))
            stack.enter_context(patch.object(threading.Thread, "start", started))
            _before_forks.append(self)
            stack.callback(_before_forks.remove, self)
            yield


_before_forks: list[Unfilled] = []


def _fill_before_fork() -> None:
    if not ahead.forks():
        for each in _before_forks:
            each.fill_all()


os.register_at_fork(before=_fill_before_fork)


def _id(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_whole(tensor: Tensor) -> bool:
    """Whether it is a large dense tensor on the host, and all of its storage."""
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and tensor.dtype in DRAWN
        and tensor.numel() >= LEAST
        and tensor.is_contiguous()
        and tensor.untyped_storage().nbytes() == tensor.nbytes
        and tensor.untyped_storage().resizable()  # else it is of others, such as numpy
        and not tensor.untyped_storage().is_shared()
    )


def _geometry(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


def _change(op: Overload, tensor: Tensor, others: list[Any], named: dict[str, Any]) -> Change:
    """The op, to be done later; the generator continues as if it had been done."""
    dtype, geometry = tensor.dtype, _geometry(tensor)

    def change(whole: Tensor) -> None:
        op.op(whole.view(dtype).as_strided(*geometry), *others, **named)

    if op.name not in DRAWS:
        return change
    state = torch.get_rng_state()
    numbers = tensor.numel()
    if op.name == "normal_" and numbers % 16:  # the last 16 are drawn again
        numbers += 16
    torch.set_rng_state(later(state, numbers * DRAWN[dtype]))

    def draw(whole: Tensor) -> None:
        now = torch.get_rng_state()
        torch.set_rng_state(state)
        change(whole)
        torch.set_rng_state(now)

    return draw


def later(state: Tensor, draws: int) -> Tensor:
    """The state of the host's generator after so many draws of 32 bits."""
    after = state.clone()
    core.library().anydevice_skip_draws(after.data_ptr(), draws)
    return after


def _fill(left: _Left) -> None:
    with _disable_current_modes(), torch.no_grad():
        whole = torch.empty(0, dtype=torch.uint8)
        whole.set_(torch.UntypedStorage._new_with_weak_ptr(left.storage.cdata))
        for change in left.changes:
            change(whole)
