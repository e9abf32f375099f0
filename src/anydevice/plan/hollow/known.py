"""Values that a hollow GPU knows: whole numbers from the host, and what is computed from them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.multiprocessing import reductions
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from anydevice.plan.hollow import shared
from anydevice.plan.time.overloads import Overload

aten = torch.ops.aten
MOST = 1 << 16  # elements; an op on more is not computed

# Note [Known and assumed values]
# A hollow GPU's tensors have no values, but some of what programs ask is known without:
#
# - Small whole numbers that the host put there are kept by the GPU itself (Note [Known values] in
#   virtual/native/dispatch/known.h): lengths, labels, masks. An op on nothing but such tensors, or
#   on none (`arange`, `eye`), is computed on the host as well, so `lengths.max().item()` and
#   `x[labels == 3]` are what they would be. What is random is not known.
# - Numbers are assumed to be finite. So `isnan` and `isinf` are false, and `isfinite` is true,
#   which PyTorch computes as `(x == x) * (abs(x) != inf)`. These may be large: one element
#   then stands for all. Matrices are regular: what linalg factorises has no error.
#
# Values belong to a tensor and end when its storage is written to.

StorageWeakRef: Any = reductions.StorageWeakRef
OF_UNIFORM = {
    *(aten.all, aten.any, aten.bitwise_not, aten.logical_not, aten.mul, aten.bitwise_and),
    *(aten.bitwise_or, aten.logical_and, aten.logical_or, aten._is_all_true, aten._is_any_true),
    *(aten.view, aten.reshape, aten.expand, aten.detach, aten.alias, aten._to_copy),
}
PIECES = {aten.unbind, aten.split, aten.split_with_sizes}
UNSET = {aten.empty, aten.empty_like, aten.new_empty, aten.empty_strided, aten.new_empty_strided}
RANDOM = torch.Tag.nondeterministic_seeded
WHOLE = frozenset((torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))


class KnownValues:
    """The values that are known, by tensor.

    >>> known.of(mask)  # a tensor on the CPU, or None  # doctest: +SKIP
    """

    def __init__(self) -> None:
        # (values on the CPU, whether one stands for all) by tensor
        self._values: Any = WeakTensorKeyDictionary()
        self._likely: Any = WeakTensorKeyDictionary()
        self._differs: Any = WeakTensorKeyDictionary()
        self._in: dict[int, list[ref[Tensor]]] = {}  # by storage
        self._copies: dict[int, Any] = {}  # storages on the host, of values that nobody knows
        self.reads = False  # whether a GPU is read for this just now, and not by the program

    def of(self, tensor: Tensor) -> Tensor | None:
        """The tensor's values on the CPU; None if they are not known."""
        if tensor in self._values:
            values, uniform = self._values[tensor]
            whole: Tensor = values.expand(tensor.shape) if uniform else values
            return whole
        if tensor.dtype not in WHOLE or tensor.numel() > MOST or type(tensor) is not Tensor:
            return None
        if not tensor.is_cuda:
            return tensor.detach()
        return self._read(tensor) if torch.ops.anydevice.is_known(tensor) else None

    def is_unknown_copy(self, tensor: Tensor) -> bool:
        """Whether it was copied from a GPU to the host, and its values are not known."""
        if tensor.layout != torch.strided:
            return False
        kept = self._copies.get(tensor.untyped_storage()._cdata)
        return kept is not None and not kept.expired()

    def likely(self, tensor: Tensor) -> bool:
        """Whether it asks if any value is true, which is likely."""
        return tensor in self._likely

    def differs(self, tensor: Tensor) -> bool | None:
        """Its truth if real numbers differ, where it asks for that."""
        found: bool | None = self._differs.get(tensor)
        return found

    def _read(self, tensor: Tensor) -> Tensor:
        self.reads = True
        try:
            return tensor.detach().cpu()
        finally:
            self.reads = False

    def follow(
        self, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """An op has run: what does it say about values?"""
        if op.collective:
            self._follow_collective(op.op, args, kwargs, result)
            return
        if op.mutable:
            self._forget(args)
            return
        if op.packet is aten._to_copy and not result.is_cuda and args[0].is_cuda:
            self._note_copy(args[0], result)
        if op.name.endswith("_ex") and isinstance(result, tuple) and result[-1].is_cuda:
            info = result[-1]  # where a factorisation of linalg failed: nowhere
            self._keep(info, info.new_zeros((1,) * info.dim(), device="cpu"), uniform=True)
        if op.packet in PIECES:
            self._learn_pieces(op.op, args, kwargs, result)
        if not isinstance(result, Tensor) or result.dtype not in WHOLE:
            return
        if op.packet is aten.any:
            self._likely[result] = True
        if op.packet in (aten.eq, aten.ne) and args[0].is_floating_point():
            self._differs[result] = op.packet is aten.ne
        if result.is_cuda:
            self._learn(op.op, args, kwargs, result)
        elif self._in and args and isinstance(args[0], Tensor) and args[0] in self._values:
            result.copy_(self.of(args[0]))  # type: ignore[arg-type]

    def _note_copy(self, tensor: Tensor, copy: Tensor) -> None:
        if copy.layout == torch.strided and not self.reads and self.of(tensor) is None:
            storage = copy.untyped_storage()
            self._copies[storage._cdata] = StorageWeakRef(storage)

    def _follow_collective(self, op: Any, args: Any, kwargs: Any, result: Any) -> None:
        if not self._values:
            return
        found = shared.after(op, args, kwargs, result, self.of)
        for tensor in shared.written(op, args, result):
            self._forget((tensor,))
        for tensor, values in found:
            self._keep(tensor, values)

    def assume(self, tensor: Tensor, values: Tensor) -> None:
        """These are a tensor's values, until it is written to."""
        self._keep(tensor, values)

    def _learn(
        self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor
    ) -> None:
        packet = op._overloadpacket
        if (finite := _if_finite(packet, args)) is not None:
            one = torch.full((1,) * result.dim(), finite, dtype=result.dtype)
            self._keep(result, one, uniform=True)
            return
        inputs = [leaf for leaf in _leaves((*args, *kwargs.values())) if isinstance(leaf, Tensor)]
        if any(tensor in self._values and self._values[tensor][1] for tensor in inputs):
            if packet in OF_UNIFORM and all(t in self._values for t in inputs):
                self._compute(op, args, kwargs, result, uniform=True)
        elif result.numel() > MOST or RANDOM in op.tags or packet in UNSET:
            return
        elif all(self.of(tensor) is not None for tensor in inputs):
            self._compute(op, args, kwargs, result)

    def _learn_pieces(
        self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], pieces: Iterable[Tensor]
    ) -> None:
        whole = args[0]
        uniform = whole in self._values and self._values[whole][1]
        if whole.is_cuda and not uniform and (values := self.of(whole)) is not None:
            for piece, part in zip(pieces, op(values, *args[1:], **kwargs), strict=True):
                self._keep(piece, part)

    def _compute(
        self, op: Any, args: Any, kwargs: Any, result: Tensor, *, uniform: bool = False
    ) -> None:
        def on_host(tensor: Tensor) -> Any:
            return self._values[tensor][0] if uniform else self.of(tensor)

        if uniform and op._overloadpacket in (aten.view, aten.reshape, aten.expand):
            self._keep(result, on_host(args[0]).reshape((1,) * result.dim()), uniform=True)
            return
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        args, kwargs = tree_map_only(Tensor, on_host, (args, kwargs))
        try:
            values = op(*args, **kwargs)
        except (RuntimeError, IndexError, NotImplementedError):
            return
        whole = uniform and result.dim() > 0
        if whole or values.shape == result.shape:
            self._keep(result, values, uniform=whole)

    def _keep(self, tensor: Tensor, values: Tensor, *, uniform: bool = False) -> None:
        self._values[tensor] = values, uniform
        self._in.setdefault(tensor.untyped_storage()._cdata, []).append(ref(tensor))

    def _forget(self, written: tuple[Any, ...]) -> None:
        if not self._in:
            return
        for tensor in _leaves(written[:1]):
            if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
                for known in self._in.pop(tensor.untyped_storage()._cdata, ()):
                    if (one := known()) is not None:
                        self._values.pop(one, None)


def _if_finite(packet: Any, args: tuple[Any, ...]) -> bool | None:
    """The answer to a question about finite numbers; None if the op asks for something else."""
    if packet in (aten.isnan, aten.isinf):
        return False
    if packet not in (aten.eq, aten.ne) or len(args) < 2:
        return None
    itself = args[0] is args[1]
    infinite = isinstance(args[1], float) and math.isinf(args[1])
    if itself or infinite:
        return bool((packet is aten.eq) == itself)
    return None


def _leaves(nested: Iterable[Any]) -> Iterable[Any]:
    for part in nested:
        if isinstance(part, list | tuple):
            yield from _leaves(part)
        else:
            yield part
