"""Storages: a build without CUDA makes none on `cuda` and resizes none there."""

from collections.abc import Iterator
from typing import Any

import torch


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """The two methods of torch.UntypedStorage that its C++ refuses for CUDA."""
    make, resize = torch.UntypedStorage.__new__, torch.UntypedStorage.resize_

    def new(cls: type, *arguments: Any, device: Any = None, **options: Any) -> Any:
        if device is None or torch.device(device).type != "cuda":
            return make(
                cls, *arguments, **options, **({} if device is None else {"device": device})
            )
        if len(arguments) == 1 and isinstance(arguments[0], int):
            return torch.empty(arguments[0], dtype=torch.uint8, device=device).untyped_storage()
        values: list[int] = list(*arguments)
        return torch.tensor(values, dtype=torch.uint8, device=device).untyped_storage()

    def resize_(self: torch.UntypedStorage, size: int) -> Any:
        if self.device.type != "cuda":
            return resize(self, size)
        whole = torch.empty(0, dtype=torch.uint8, device=self.device).set_(self)
        torch.ops.anydevice.resize_storage(whole, size)
        return self

    yield torch.UntypedStorage, "__new__", new
    yield torch.UntypedStorage, "resize_", resize_
