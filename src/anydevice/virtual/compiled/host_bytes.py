"""A virtual GPU's tensors as tensors of the host, zero-copy, and what comes back."""

from __future__ import annotations

import ctypes
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

_owners: WeakValueDictionary[int, Tensor] = WeakValueDictionary()  # by their address


def placed(result: Any, on_card: bool, made: dict[int, Tensor]) -> Any:
    """A result where the program expects it: on the current GPU, or the host.

    `made` has the copies of what ops of PyTorch allocated on the host, by address.
    """
    if not isinstance(result, Tensor):
        return result
    address = result.untyped_storage().data_ptr()
    owner = _owners.get(address)
    if not on_card:
        return result if owner is None else result.clone()
    if owner is None:
        if address not in made:
            made[address] = _copied(result)
        owner = made[address]
    return _as_viewed(owner, result)


def _copied(result: Tensor) -> Tensor:
    """Its bytes on the GPU; a card's op would have left them there, so this is no transfer."""
    bytes_ = torch.empty(0, dtype=torch.uint8).set_(result.untyped_storage())
    owner = torch.empty(bytes_.shape, dtype=torch.uint8, device="cuda")
    to_host(owner).copy_(bytes_)
    return owner


def _as_viewed(owner: Tensor, like: Tensor) -> Tensor:
    """The owner's bytes, in the shape of another name for them."""
    empty = torch.empty(0, dtype=like.dtype, device=owner.device)
    view = empty.set_(owner.untyped_storage(), like.storage_offset(), like.shape, like.stride())
    return read_as(view, like)


def read_as(tensor: Tensor, like: Tensor) -> Tensor:
    """The tensor, conjugated and negated where it is read, as the other is."""
    torch._C._set_conj(tensor, like.is_conj())
    torch._C._set_neg(tensor, like.is_neg())
    return tensor


def to_host(tensor: Tensor) -> Tensor:
    """The same bytes as a CPU tensor, which keeps them."""
    size = tensor.untyped_storage().nbytes()
    if size == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    address = tensor.untyped_storage().data_ptr()
    held: Any = (ctypes.c_uint8 * size).from_address(address)
    held.owner = tensor  # kept by the array, and that by the storage
    _owners[address] = tensor
    flat = torch.from_numpy(np.frombuffer(held, dtype=np.uint8))
    return _as_viewed(flat, tensor)
