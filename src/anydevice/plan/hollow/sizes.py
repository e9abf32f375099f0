"""Sizes that depend on values, on a hollow GPU: as many as an assumed share of true ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from anydevice.plan.hollow.known import KnownValues
from anydevice.plan.hollow.vision import SUPPRESSED
from anydevice.plan.time.overloads import Overload

aten = torch.ops.aten
SHARE = 0.5
MASKS = (torch.bool, torch.uint8)
INVERSIONS = ("bitwise_not", "logical_not")
TRUE = "of a mask's values are assumed to be true (--assume-true)."
DIFFER = "All values that unique() looks at are assumed to differ, which is the most it can take."
EVEN = (
    "Assumed: all bins of bincount() and histc() get as many. If they are a router's experts, "
    "tokens are routed evenly."
)
ONCE = "Each of repeat_interleave's repeats is assumed to be 1: give output_size to say how many."

# Note [Sizes by value]
# `x[mask]`, `nonzero` and `unique` return as many elements as the values say. Some are known (Note
# [Known and assumed values] in known.py). Elsewhere a share of them is assumed to be true
# (--assume-true), the same for each tensor of a shape: `x[mask]` and `y[mask]` fit together.
# `x[~mask]` has all others, since `~` is followed. All values of `unique` are assumed to differ,
# and all bins of `bincount` and `histc` to get as many: so a router sends as much to each expert.
#
# An op is replaced by what CUDA does: the positions are a tensor of whole numbers, which are found
# while the host waits, and taken from there as by any other index.


class AssumedSizes:
    """Answers the ops whose results have a size that depends on values.

    `notes` are the assumptions that were needed, as sentences.
    """

    def __init__(self, share: float = SHARE) -> None:
        self.share = share
        self.notes: dict[str, None] = {}
        self.known = KnownValues()
        self._rest: Any = WeakTensorKeyDictionary()  # results of ~mask
        self._answers: dict[str, Callable[..., Any]] = {
            "nonzero": self._nonzero,
            "index": self._index,
            "masked_select": self._masked_select,
            "_unique2": self._unique,
            "unique_dim": self._unique_dim,
            "unique_consecutive": self._unique_consecutive,
            "bincount": self._bincount,
            "histc": self._histc,
            "repeat_interleave": self._repeat_interleave,
            "normal": self._normal,
        }

    def answer(self, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The op's result; NotImplemented if its size does not depend on values."""
        answer = self._answers.get(op.name)
        if answer is None or not op.of_pytorch or not any(map(_on_gpu, args)) or "out" in kwargs:
            return NotImplemented
        return answer(*args, **kwargs)

    def follow(
        self, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Notes what an op did: which values are known, and what `~mask` returned."""
        self.known.follow(op, args, kwargs, result)
        if op.name in INVERSIONS and isinstance(result, Tensor):
            self._rest[result] = True

    def kept(self, boxes: int) -> int:
        """Of so many boxes, how many nms() returns."""
        self.notes[f"{self.share:.0%} {SUPPRESSED}"] = None
        return round(self.share * boxes)

    def _count(self, mask: Tensor) -> int:
        """How many are true."""
        torch.cuda.current_stream(mask.device).synchronize()
        if (values := self.known.of(mask)) is not None:
            return int(values.count_nonzero())
        self.notes[f"{self.share:.0%} {TRUE}"] = None
        share = round(self.share * mask.numel())
        return mask.numel() - share if mask in self._rest else share

    def _nonzero(self, values: Tensor) -> Tensor:
        shape = (self._count(values), values.dim())
        return torch.empty(shape, dtype=torch.int64, device=values.device)

    def _index(self, x: Tensor, indices: list[Tensor | None]) -> Any:
        if not any(index is not None and index.dtype in MASKS for index in indices):
            return NotImplemented
        found: list[Tensor | None] = []
        for index in indices:
            if index is not None and index.dtype in MASKS:
                found += self._nonzero(index.to(x.device)).unbind(1)
            else:
                found.append(index)
        return aten.index.Tensor(x, found)

    def _masked_select(self, x: Tensor, mask: Tensor) -> Tensor:
        whole = x if x.dim() >= mask.dim() else mask
        return x.new_empty(self._count(mask if mask.shape == whole.shape else whole))

    def _unique(
        self, x: Tensor, sorted: bool = True, inverse: bool = False, counts: bool = False
    ) -> tuple[Tensor, ...]:
        return self._distinct(x, x.reshape(-1), x.numel(), x.shape if inverse else (0,), counts)

    def _unique_dim(
        self, x: Tensor, dim: int, sorted: bool = True, inverse: bool = False, counts: bool = False
    ) -> tuple[Tensor, ...]:
        size = x.shape[dim]
        return self._distinct(x, x, size, (size if inverse else 0,), counts)

    def _unique_consecutive(
        self, x: Tensor, inverse: bool = False, counts: bool = False, dim: int | None = None
    ) -> tuple[Tensor, ...]:
        if dim is None:
            return self._unique(x, True, inverse, counts)
        return self._unique_dim(x, dim, True, inverse, counts)

    def _distinct(
        self, x: Tensor, like: Tensor, size: int, inverse: Any, counts: bool
    ) -> tuple[Tensor, ...]:
        self.notes[DIFFER] = None
        torch.cuda.current_stream(x.device).synchronize()
        places = torch.empty(inverse, dtype=torch.int64, device=x.device)
        return torch.empty_like(like), places, places.new_empty(size if counts else 0)

    def _bincount(self, x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Any:
        known = self.known.of(x)
        if known is None and not minlength:
            return NotImplemented  # as long as the largest value, which nobody knows
        size = max(minlength, int(known.max()) + 1 if known is not None and x.numel() else 0)
        dtype = torch.int64 if weights is None else weights.dtype
        counts = torch.empty(size, dtype=dtype, device=x.device)
        return counts if weights is not None else self._even(counts, x)

    def _histc(self, x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
        return self._even(x.new_empty(bins), x)

    def _even(self, counts: Tensor, x: Tensor) -> Tensor:
        """As many in each bin, and one more in the first ones if they cannot be equal."""
        if counts.numel() and self.known.of(x) is None:
            each, more = divmod(x.numel(), counts.numel())
            places = torch.arange(counts.numel())
            self.known.assume(counts, (each + (places < more)).to(counts.dtype))
            self.notes[EVEN] = None
        return counts

    def _repeat_interleave(self, repeats: Tensor, output_size: int | None = None) -> Any:
        if output_size is not None:
            return NotImplemented
        torch.cuda.current_stream(repeats.device).synchronize()
        known = self.known.of(repeats)
        if known is None:
            self.notes[ONCE] = None
        return repeats.new_empty(repeats.numel() if known is None else int(known.sum()))

    def _normal(self, mean: Any, std: Any = 1.0, *more: Any, generator: Any = None) -> Any:
        """Its kernel asks whether each deviation is at least zero, which it is."""
        if more or not isinstance(std, Tensor):
            return NotImplemented
        return torch.empty_like(std + mean).normal_(generator=generator).mul_(std).add_(mean)


def _on_gpu(argument: Any) -> bool:
    return isinstance(argument, Tensor) and argument.is_cuda
