"""The same arguments on another device: equal bits, strides, offsets and sharing of memory."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map


def twins(tree: Any, device: str) -> Any:
    """Copies every tensor in `tree` to `device`; tensors that shared memory share it again."""
    storages: dict[int, torch.UntypedStorage] = {}
    done: dict[int, Any] = {}

    def once(leaf: Any) -> Any:
        if id(leaf) not in done:
            # The leaf is kept beside its twin, lest its id be given to another.
            done[id(leaf)] = (twin(leaf, device, storages), leaf)
        return done[id(leaf)][0]

    return tree_map(once, tree)


def twin(leaf: Any, device: str, storages: dict[int, torch.UntypedStorage]) -> Any:
    if isinstance(leaf, torch.Tensor):
        with torch.no_grad():
            stays = getattr(leaf, "stays_on_cpu", False)
            copy = tensor_twin(leaf, "cpu" if stays else device, storages)
        if stays:
            copy.stays_on_cpu = True
        return copy.requires_grad_(leaf.requires_grad)
    if isinstance(leaf, torch.device | str) and str(leaf).startswith(("cpu", "cuda")):
        # A sample that names the other device means the CPU when it is itself on the GPU.
        other = "cpu" if device == "cuda" else leaf
        return torch.device(device if str(leaf) == "cpu" else other)
    if isinstance(leaf, torch.Generator):
        return torch.Generator(device).manual_seed(leaf.initial_seed())
    return leaf


def tensor_twin(
    tensor: torch.Tensor, device: str, storages: dict[int, torch.UntypedStorage]
) -> torch.Tensor:
    plain = tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized
    if not plain or tensor._is_zerotensor():
        return tensor.detach().to(device, copy=True)
    storage = tensor.untyped_storage()
    if storage._cdata not in storages:
        storages[storage._cdata] = copied_bytes(storage, device)
    copy = torch.empty(0, dtype=tensor.dtype, device=device)
    place = (storages[storage._cdata], tensor.storage_offset(), tensor.shape, tensor.stride())
    return marked_like(tensor)(copy.set_(*place))


def copied_bytes(storage: torch.UntypedStorage, device: str) -> torch.UntypedStorage:
    as_bytes = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    return as_bytes.to(device, copy=True).untyped_storage()


def marked_like(tensor: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """The lazy conjugate and negative bits, which a storage does not carry."""

    def mark(copy: torch.Tensor) -> torch.Tensor:
        copy = copy.conj() if tensor.is_conj() else copy
        return torch._neg_view(copy) if tensor.is_neg() else copy

    return mark
