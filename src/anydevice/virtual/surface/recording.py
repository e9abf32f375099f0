"""The ops of a CUDA graph as they were captured, and their replay.

A graph knows memory, not tensors: each argument is a piece of a storage. A storage that was there
before the capture, or outlives it, is the same at each replay; any other is made anew each time.

What one graph made and another of the same pool reads is memory that both know by its address: it
lasts as long as the pool, also when the tensor is gone and another one has got its place.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, cast
from weakref import WeakSet

import torch
from torch import Tensor
from torch.multiprocessing import reductions
from torch.utils import _python_dispatch as dispatch
from torch.utils import _pytree as pytree

from anydevice.virtual.surface.generators import in_states

Mode: Any = dispatch.TorchDispatchMode
StorageWeakRef: Any = reductions.StorageWeakRef

COPIES = ("aten::copy_", "aten::_to_copy")


@dataclass(frozen=True)
class Piece:
    """A tensor by its place in a storage."""

    storage: int
    dtype: torch.dtype
    device: torch.device
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    conjugate: bool
    negative: bool

    def of(self, storage: torch.UntypedStorage) -> Tensor:
        """The tensor."""
        empty = torch.empty(0, dtype=self.dtype, device=self.device)
        tensor = empty.set_(storage, self.offset, self.size, self.stride)
        if self.conjugate:
            tensor = tensor.conj()
        return torch._neg_view(tensor) if self.negative else tensor


@dataclass(frozen=True)
class Place:
    """Memory of a pool."""

    address: int
    device: torch.device
    size: int

    def storage(self) -> torch.UntypedStorage:
        """A storage there, which does not own it."""
        construct: Any = torch._C._construct_storage_from_data_pointer
        return cast("torch.UntypedStorage", construct(self.address, self.device, self.size))


@dataclass
class Call:
    """One op, with pieces in the place of tensors."""

    op: Any
    arguments: Any
    results: list[Piece]
    states: list[torch.Generator] | None = None  # of the generators, where it may have drawn
    last_uses: list[int] = field(default_factory=list)  # storages that nothing needs after it


@cache
def _written_arguments(op: Any) -> tuple[tuple[int, str], ...]:
    """Place and name of the arguments that the op writes to."""
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(op._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def written_tensors(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors that a call of an op writes to, also those in lists."""
    values = [
        args[place] if place < len(args) else kwargs.get(name)
        for place, name in _written_arguments(op)
    ]
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


class Recording(Mode):  # type: ignore[misc]
    """What one capture saw.

    Args:
        generators: those besides the default ones that it may draw from.
        pool: where its memory comes from.
    """

    _all: ClassVar[WeakSet["Recording"]] = WeakSet()

    def __init__(
        self, generators: Iterable[torch.Generator] = (), pool: tuple[int, int] | None = None
    ) -> None:
        super().__init__()
        self.pool = pool
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.calls: list[Call] = []
        self._numbers: dict[int, int] = {}  # of storages, by their address
        self._seen: list[StorageWeakRef] = []  # which keep the addresses from being used again
        self._kept: dict[int, torch.UntypedStorage] = {}  # that were there before the capture
        self._lasting: dict[int, Place] = {}  # that graphs of the same pool share
        self._before: dict[int, Tensor] = {}  # the bytes of those that the capture writes to
        self._generators = [*torch.cuda.default_generators, *generators]
        Recording._all.add(self)

    def begin(self) -> None:
        """Sees each op of this thread from here on."""
        self._drawn = [(state, state.get_offset()) for state in self._states()]
        self.__enter__()

    def end(self) -> None:
        """Puts back what the capture changed, as the card's capture changes nothing."""
        self.__exit__(None, None, None)
        for number, whole in self._before.items():
            _bytes_of(self._storages()[number]).copy_(whole)
        self._before.clear()
        for state, offset in reversed(self._drawn):
            state.set_offset(offset)
        self._find_last_uses()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Notes the op and runs it."""
        arguments = (args, kwargs or {})
        tensors = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Tensor)]
        if any(dispatch.is_traceable_wrapper_subclass(tensor) for tensor in tensors):
            return NotImplemented  # its own ops come here in turn
        pieces = pytree.tree_map_only(Tensor, lambda tensor: self._argument(op, tensor), arguments)
        written = written_tensors(op, args, kwargs or {})
        self._save(written)
        states = self._states() if torch.Tag.nondeterministic_seeded in op.tags else None
        for state in states or ():
            self._drawn.append((state, state.get_offset()))
        results = op(*args, **(kwargs or {}))
        made = [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, Tensor)]
        if not any(tensor.is_cuda for tensor in (*tensors, *made)):
            return results
        known = len(self._seen)
        pieces_made = [self._piece(op, tensor) for tensor in made]
        only_views = made and not written and all(piece.storage < known for piece in pieces_made)
        if not only_views:
            self.calls.append(Call(op, pieces, pieces_made, states))
        return results

    def _states(self) -> list[torch.Generator]:
        return [generator.graphsafe_get_state() for generator in self._generators]

    def _argument(self, op: Any, tensor: Tensor) -> Any:
        if tensor.is_cpu and tensor.dim() == 0 and op._schema.name not in COPIES:
            return tensor.clone()  # a number: the card's kernel has it as it was at the capture
        known = len(self._seen)
        piece = self._piece(op, tensor)
        if piece.storage >= known:
            self._hold(piece.storage, tensor.untyped_storage())
        return piece

    def _hold(self, number: int, storage: torch.UntypedStorage) -> None:
        others = [other for other in Recording._all if other is not self]
        if self.pool and any(o._shares(storage) for o in others if o.pool == self.pool):
            self._lasting[number] = _place_of(storage)
        else:
            self._kept[number] = storage

    def _shares(self, storage: torch.UntypedStorage) -> bool:
        number = self._numbers.get(storage._cdata)
        if number is None or number in self._kept or storage.device != self.device:
            return False
        self._lasting[number] = _place_of(storage)
        return True

    def _piece(self, op: Any, tensor: Tensor) -> Piece:
        if tensor.layout != torch.strided or torch._is_zerotensor(tensor):
            raise NotImplementedError(
                f"a CUDA graph of a virtual GPU captures dense tensors, got one of layout "
                f"{tensor.layout} in {op}: leave this op out of the graph."
            )
        storage = tensor.untyped_storage()
        number = self._numbers.get(storage._cdata)
        if number is None:
            number = self._numbers[storage._cdata] = len(self._seen)
            self._seen.append(StorageWeakRef(storage))
        return Piece(
            number,
            tensor.dtype,
            tensor.device,
            tensor.size(),
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def _save(self, written: Iterable[Tensor]) -> None:
        for tensor in written:
            number = self._numbers.get(tensor.untyped_storage()._cdata)
            if number in self._before or number is None:
                continue
            if number in self._kept or number in self._lasting:
                self._before[number] = _bytes_of(tensor.untyped_storage()).clone()

    def _find_last_uses(self) -> None:
        done: set[int] = set()
        for call in reversed(self.calls):
            leaves = pytree.tree_leaves(call.arguments)
            used = {leaf.storage for leaf in leaves if isinstance(leaf, Piece)}
            used |= {piece.storage for piece in call.results}
            call.last_uses = list(used - done - self._kept.keys())
            done |= used

    def replay(self) -> None:
        """Runs the ops again: results go to where those of the capture are still in use."""
        storages = self._storages()
        with torch.no_grad(), torch.autocast("cuda", enabled=False), _below_modes():
            for call in self.calls:
                args, kwargs = pytree.tree_map_only(
                    Piece, lambda piece: piece.of(storages[piece.storage]), call.arguments
                )
                states = call.states or []
                with in_states(self._generators[: len(states)], states):
                    results = pytree.tree_leaves(call.op(*args, **kwargs))
                made = [leaf for leaf in results if isinstance(leaf, Tensor)]
                for piece, result in zip(call.results, made, strict=True):
                    tensor = result if result.device == piece.device else _at(piece, result)
                    there = storages.setdefault(piece.storage, tensor.untyped_storage())
                    if there._cdata != tensor.untyped_storage()._cdata:
                        piece.of(there).copy_(tensor)
                for number in call.last_uses:
                    if _alive(self._seen[number]) is None:
                        storages.pop(number, None)

    def _storages(self) -> dict[int, torch.UntypedStorage]:
        storages = dict(self._kept)
        for number, seen in enumerate(self._seen):
            if number not in storages and (alive := _alive(seen)) is not None:
                storages[number] = alive
        for number, place in self._lasting.items():
            if number not in storages:
                storages[number] = place.storage()
        return storages


def _at(piece: Piece, number: Tensor) -> Tensor:
    """A number on the device: a capture keeps attention's seed there, and others on the host."""
    return torch.full((), number.item(), dtype=piece.dtype, device=piece.device)


def _alive(seen: StorageWeakRef) -> torch.UntypedStorage | None:
    return None if seen.expired() else torch.UntypedStorage._new_with_weak_ptr(seen.cdata)


def _place_of(storage: torch.UntypedStorage) -> Place:
    return Place(storage.data_ptr(), storage.device, storage.nbytes())


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _below_modes() -> Any:
    """A replay is one call of the driver's: no mode of the user's sees the ops inside."""
    return dispatch._disable_current_modes()
