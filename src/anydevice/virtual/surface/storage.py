"""Storages: a build without CUDA makes none on `cuda` and resizes none there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from anydevice.virtual import core


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """The two methods of torch.UntypedStorage that its C++ refuses for CUDA."""
    make: Any = torch.UntypedStorage.__new__
    resize = torch.UntypedStorage.resize_
    initialise: Any = torch.cuda._lazy_init
    allocator = core.library().anydevice_allocator()

    def new(cls: type, *arguments: Any, device: Any = None, **options: Any) -> Any:
        if device is None:
            return make(cls, *arguments, **options)
        if torch.device(device).type != "cuda" or "allocator" in options:
            return make(cls, *arguments, device=device, **options)
        initialise()
        with torch.cuda.device(device):
            return make(cls, *arguments, allocator=allocator, **options)

    def resize_(self: torch.UntypedStorage, size: int) -> Any:
        if self.device.type != "cuda":
            return resize(self, size)
        if not isinstance(size, int):
            raise RuntimeError(f"resize_ expects an int, but got {type(size).__name__}")
        if size < 0:
            raise RuntimeError(f"Requested storage size ({size}) cannot be represented as a size_t")
        torch.ops.anydevice.resize_storage(whole(self), size)
        return self

    yield torch.UntypedStorage, "__new__", new
    yield torch.UntypedStorage, "resize_", resize_


def whole(storage: torch.UntypedStorage) -> torch.Tensor:
    """The bytes of a storage as a tensor: ops take no storages."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
