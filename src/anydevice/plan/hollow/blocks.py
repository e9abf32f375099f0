"""Each block of a GPU's memory: when it was taken and freed, by which module, and for what."""

from __future__ import annotations

import ctypes
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from anydevice.frames import own_place
from anydevice.virtual import core
from anydevice.virtual.surface import history

PARAMETERS = "parameters"
GRADIENTS = "gradients"
OPTIMIZER = "optimizer state"
ACTIVATIONS = "activations"
BACKWARD = "activation gradients"
INPUTS = "inputs"
TEMPORARY = "optimizer temporaries"
WORKSPACE = "workspace"
OTHER = "other"
# In the order in which plans list them.
CATEGORIES = (
    *(PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, BACKWARD),
    *(INPUTS, TEMPORARY, OTHER, WORKSPACE),
)


@dataclass(slots=True)
class Block:
    """Some bytes, from the allocator's event `start` to its event `end` (None: never freed)."""

    start: int
    end: int | None
    bytes: int
    device: int
    category: str
    module: str
    where: str
    address: int = 0


Birth = Callable[[], tuple[str, str]]  # category and module of what is being allocated
_Callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.POINTER(history.Trace))
_ALLOCATED = history.ACTIONS.index("alloc")
_FREED = history.ACTIONS.index("free_completed")


class Ledger:
    """Notes each block while it is entered. What a block is for may become clear later: `name`.

    >>> with Ledger(birth=lambda: ("inputs", "")) as ledger:
    ...     x = torch.ones(3, device="cuda")  # doctest: +SKIP
    >>> ledger.blocks  # doctest: +SKIP
    """

    def __init__(self, birth: Birth) -> None:
        self.blocks: list[Block] = []
        self.events = 0
        self._birth = birth
        self._alive: dict[tuple[int, int], Block] = {}
        self._callback = _Callback(self._note)

    def __enter__(self) -> Ledger:
        core.library().anydevice_memory_tell_history(self._callback)
        return self

    def __exit__(self, *error: object) -> None:
        history.listen()  # as the program had set it

    def _note(self, device: int, pointer: Any) -> None:
        trace = pointer.contents
        if trace.action == _ALLOCATED:
            category, module = self._birth()
            file, line = own_place(sys._getframe(1))
            block = Block(
                *(self.events, None, trace.size, device),
                *(category, module, f"{file}:{line}", trace.address),
            )
            self._alive[device, trace.address] = block
            self.blocks.append(block)
        elif trace.action == _FREED:
            if freed := self._alive.pop((device, trace.address), None):
                freed.end = self.events
        else:
            return
        self.events += 1

    def name(self, tensors: Iterable[Any], category: str, *, over: tuple[str, ...] = ()) -> None:
        """Says what these tensors are for; `over`: only those of one of these categories."""
        for tensor in tensors:
            block = self._block_of(tensor)
            if block and block.category != WORKSPACE and (not over or block.category in over):
                block.category = category

    def left_since(self, event: int) -> int:
        """The bytes that were taken since this event and not freed."""
        first = bisect_left(self.blocks, event, key=lambda block: block.start)
        return sum(block.bytes for block in self.blocks[first:] if block.end is None)

    def began(self, tensor: torch.Tensor) -> int | None:
        """The event at which the tensor's memory was taken; None if it is not on a GPU."""
        block = self._block_of(tensor)
        return block.start if block else None

    def _block_of(self, tensor: Any) -> Block | None:
        tensor = getattr(tensor, "_local_tensor", tensor)  # the local part of a DTensor
        if not isinstance(tensor, torch.Tensor) or not tensor.is_cuda:
            return None
        with suppress(NotImplementedError, RuntimeError):  # a sparse tensor has no storage
            address = tensor.untyped_storage().data_ptr()
            return self._alive.get((tensor.get_device(), address))
        return None


@dataclass
class Peak:
    """The fullest moment of a GPU, and its blocks then."""

    bytes: int
    event: int
    blocks: list[Block]


def peak(blocks: list[Block], device: int = 0, *, without: tuple[str, ...] = ()) -> Peak:
    """The fullest moment, in bytes that were asked for; without some categories."""
    counted = [b for b in blocks if b.device == device and b.category not in without]
    changes = [(b.start, b.bytes) for b in counted]
    changes += [(b.end, -b.bytes) for b in counted if b.end is not None]
    now = most = when = 0
    for event, change in sorted(changes):
        now += change
        if now > most:
            most, when = now, event
    alive = [b for b in counted if b.start <= when and (b.end is None or b.end > when)]
    return Peak(most, when, alive)
