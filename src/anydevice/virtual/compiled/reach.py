"""What a kernel may touch: the tensors that it was given, and what two of its programs wrote."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
import torch

from anydevice.virtual.compiled.names import interpreter_names

# Note [Accesses of a kernel]
# Triton's interpreter loads and stores at addresses, which on a virtual GPU are those of the
# tensors' own bytes. Nothing there stops an access next to a tensor: on a card it would read or
# overwrite something else, or end the program with "an illegal memory access". So the functions
# that load and store are replaced by `Reach`, which compares each address that its mask leaves in
# with the storages of the launch's tensors.
#
# A kernel may also take addresses from a tensor of integers (a table of pointers). Where a launch
# has integers of 64 bits, an address in any block that the allocator has given away is allowed.
# Where the host is short of memory, tensors lie elsewhere than the allocator says (`_elsewhere`),
# and so does what a table names.
#
# Programs of one launch run at the same time on a card. If two store different values at one
# address, without atomics, which value stays is chance.

INTEGERS = (torch.int64, torch.uint64)
OF_CARDS = range(1 << 42, 17 << 42)  # addresses of 16 cards, if the host has room for theirs


class OutOfBoundsError(IndexError):
    """A kernel's access outside of the tensors that it was given."""


@dataclass
class Given:
    """A tensor among a launch's arguments, as the bytes of its storage."""

    name: str
    tensor: torch.Tensor
    start: int
    end: int

    def __str__(self) -> str:
        dtype = str(self.tensor.dtype).removeprefix("torch.")
        return f"{self.name} ({dtype}, shape {list(self.tensor.shape)})"


@dataclass
class Reach:
    """Stands for the interpreter's functions on memory while a kernel runs."""

    tensors: dict[str, torch.Tensor]
    tables: bool = False  # whether an argument may be an address
    several: bool = True  # whether the launch has more than one program
    program: int = 0  # the running one's number, from 1
    conflict: tuple[str, str] = ("", "")  # the first: the argument, and where the kernel stores
    _atomic: bool = False
    _blocks: list[tuple[int, float]] = field(default_factory=list)  # begin and end, in order
    _written: dict[int, Any] = field(default_factory=dict)  # the last program, by start and byte

    def __post_init__(self) -> None:
        self._native = interpreter_names().native
        given = []
        for name, tensor in self.tensors.items():
            storage = tensor.untyped_storage()
            start = storage.data_ptr()
            given.append(Given(name, tensor, start, start + storage.nbytes()))
            self.tables = self.tables or tensor.dtype in INTEGERS
        self._given = sorted(given, key=lambda each: each.start)
        self._starts = [each.start for each in self._given]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def load(self, addresses: Any, mask: Any, other: Any, dtype: Any) -> Any:
        """Loads where the mask is true."""
        mask = _where(mask, addresses)
        self._within("loads", addresses, mask, np.dtype(dtype).itemsize)
        return self._native.load(addresses, mask, other, dtype)

    def store(self, addresses: Any, values: Any, mask: Any) -> Any:
        """Stores where the mask is true."""
        mask = _where(mask, addresses)
        given = self._within("stores", addresses, mask, values.dtype.itemsize)
        if given and self.several and not self._atomic and not self.conflict[0]:
            self._note(given, addresses, values, mask)
        return self._native.store(addresses, values, mask)

    def note_atomic(self) -> None:
        """From now on stores are ordered by the kernel itself, and not compared."""
        self._atomic = True

    def atomic_rmw(self, op: Any, addresses: Any, values: Any, mask: Any, order: Any) -> Any:
        """An atomic operation where the mask is true."""
        mask = _where(mask, addresses)
        self.note_atomic()
        self._within("changes", addresses, mask, values.dtype.itemsize)
        return self._native.atomic_rmw(op, addresses, values, mask, order)

    def atomic_cas(self, addresses: Any, compared: Any, values: Any, order: Any) -> Any:
        """An atomic exchange."""
        self.note_atomic()
        everywhere = np.ones_like(addresses, dtype=bool)
        self._within("changes", addresses, everywhere, values.dtype.itemsize)
        return self._native.atomic_cas(addresses, compared, values, order)

    def _within(self, does: str, addresses: Any, mask: Any, size: int) -> Given | None:
        """The tensor that all addresses are in; an error if one is in none."""
        used = addresses[mask]
        if not used.size:
            return None
        low, high = int(used.min()), int(used.max()) + size
        one = self._at(low)
        if one and high <= one.end:
            return one
        if not one and self._is_taken(low, high - low):
            return None
        for address in map(int, np.unique(used)):
            there = self._at(address)
            if not (there and address + size <= there.end) and not self._is_taken(address, size):
                raise OutOfBoundsError(self._described(does, address, size))
        return None

    def _at(self, address: int) -> Given | None:
        place = bisect_right(self._starts, address) - 1
        found = self._given[place] if place >= 0 else None
        while found and address >= found.end and place > 0:  # two views of one storage
            place -= 1
            if self._given[place].start != found.start:
                return None
            found = self._given[place]
        return found if found and address < found.end else None

    def _is_taken(self, address: int, size: int) -> bool:
        """Whether it is in a block of the allocator, if the kernel may know of others."""
        if not self.tables:
            return False
        known = self._is_known(address, size) or self._is_new(address, size)
        return known or self._elsewhere()

    def _elsewhere(self) -> bool:
        """Whether tensors lie in plain memory of the host."""
        return not all(start in OF_CARDS for start in self._starts)

    def _is_known(self, address: int, size: int) -> bool:
        place = bisect_right(self._blocks, (address, inf)) - 1
        return place >= 0 and address + size <= self._blocks[place][1]

    def _is_new(self, address: int, size: int) -> bool:
        """The same, after another look at the allocator's blocks."""
        segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        self._blocks = sorted(
            (block["address"], block["address"] + block["size"])
            for segment in segments
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        )
        return self._is_known(address, size)

    def _described(self, does: str, address: int, size: int) -> str:
        if not self._given:
            return f"{does} {size} bytes at {address:#x}, and was given no tensor"
        near = min(
            self._given, key=lambda each: max(each.start - address, address + size - each.end, 0)
        )
        if address < near.start:
            where = f"{near.start - address:,} bytes before the beginning of {near}"
        else:
            where = f"{address - near.end:,} bytes after the end of {near}"
        return f"{does} {size} bytes {where}".replace(" 0 bytes after", " right after")

    def _note(self, given: Given, addresses: Any, values: Any, mask: Any) -> None:
        """Notes who wrote; finds a second program that writes something else."""
        size = values.dtype.itemsize
        places = (addresses[mask] - np.uint64(given.start)).astype(np.int64)
        written = self._written.get(given.start)
        if written is None:
            written = self._written[given.start] = np.zeros(given.end - given.start, np.int32)
        before = written[places]
        others = (before != 0) & (before != self.program)
        if others.any():
            new = np.broadcast_to(values, addresses.shape)[mask][others]
            ones = np.ones(new.shape, bool)
            old = self._native.load(addresses[mask][others], ones, np.zeros_like(new), values.dtype)
            if size and (old.view(f"u{size}") != new.view(f"u{size}")).any():
                self.conflict = given.name, ""
        written[places] = self.program


def _where(mask: Any, addresses: Any) -> Any:
    """The mask of each address: single bits may come as integers, which numpy takes for places."""
    return np.broadcast_to(mask, addresses.shape).astype(bool)
