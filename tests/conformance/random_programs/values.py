"""The values of a program: pairs of tensors, on the CPU and where the program has them."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map

from tests.conformance.compare import difference

DEVICES = ("cuda:0", "cuda:1", "cpu")


@dataclass(eq=False)
class Twin:
    """One value: `cpu` in the run on the CPU, `gpu` in the run where it is on `device`."""

    name: str
    cpu: torch.Tensor
    gpu: torch.Tensor
    device: str

    def __repr__(self) -> str:
        return self.name

    @property
    def dtype(self) -> torch.dtype:
        return self.cpu.dtype

    @property
    def shape(self) -> torch.Size:
        return self.cpu.shape

    @property
    def dim(self) -> int:
        return self.cpu.dim()

    @property
    def floats(self) -> bool:
        return self.cpu.is_floating_point()

    @property
    def strided(self) -> bool:
        return self.cpu.layout is torch.strided

    @property
    def overlaps(self) -> bool:
        """Whether elements share a place, so that no op may write to it."""
        return any(s == 0 < n - 1 for n, s in zip(self.shape, self.cpu.stride(), strict=True))

    def described(self) -> str:
        kind = "" if self.strided else f", {self.cpu.layout}"
        stride = f", stride={self.cpu.stride()}" if self.strided else ""
        grad = ", requires_grad" if self.cpu.requires_grad else ""
        return f"{self.dtype} {list(self.shape)} on {self.device}{stride}{kind}{grad}"


@dataclass(frozen=True)
class At:
    """A device among the arguments of an op: the CPU in the run on the CPU."""

    device: str

    def __repr__(self) -> str:
        return f"'{self.device}'"


@dataclass(frozen=True)
class Either:
    """An argument that is another one in the run on the CPU."""

    cpu: Any
    gpu: Any

    def __repr__(self) -> str:
        return repr(self.gpu)


def side(tree: Any, name: str) -> Any:
    """The arguments of one run, "cpu" or "gpu"."""

    def chosen(leaf: Any) -> Any:
        if isinstance(leaf, Twin | Either):
            return getattr(leaf, name)
        if isinstance(leaf, At):
            return "cpu" if name == "cpu" else leaf.device
        return leaf

    return tree_map(chosen, tree)


def unlike(expected: Any, got: Any, device: str, **how: bool) -> str | None:
    """How a result on `device` is not the CPU's: in value, place, kind or autograd's view of it."""
    if found := difference(expected, got, device=torch.device(device).type, **how):
        return found
    if isinstance(got, torch.Tensor):
        if str(got.device) != device:
            return f"the result is on {got.device}, expected {device}"
        for name, fact in facts(expected).items():
            if fact != (here := facts(got)[name]):
                return f"expected {name} {fact}, got {here}"
    return None


def facts(tensor: torch.Tensor) -> dict[str, Any]:
    found: dict[str, Any] = {
        "is_leaf": is_leaf(tensor),
        "is_inference": tensor.is_inference(),
        "conjugate": tensor.is_conj(),
        "negative": tensor.is_neg(),
        "coalesced": tensor.is_coalesced() if tensor.layout is torch.sparse_coo else None,
    }
    if tensor.layout is torch.strided:
        found["storage_offset"] = tensor.storage_offset()
        found["view"] = tensor._is_view()
    if not tensor.is_inference():
        found["version"] = tensor._version
    return found


def is_leaf(tensor: torch.Tensor) -> bool | str:
    try:
        return tensor.is_leaf
    except RuntimeError as error:  # a view whose base was written to
        return str(error)


def bring_together(value: Twin) -> None:
    """The CPU's numbers on both sides, as if an op had rounded alike; autograd sees nothing."""
    if value.strided:
        with suppress(RuntimeError):  # several elements in one place cannot be written
            value.gpu.data.copy_(value.cpu.data)
    count_versions_alike(value)


def count_versions_alike(value: Twin) -> None:
    if not value.cpu.is_inference() and not value.gpu.is_inference():
        torch._C._autograd._unsafe_set_version_counter((value.gpu,), (value.cpu._version,))
