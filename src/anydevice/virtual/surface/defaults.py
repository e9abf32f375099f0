"""What a program sets for all that follows: after its GPUs are gone, it would break that."""

from __future__ import annotations

from typing import Any

import torch

_before: tuple[Any, bool] | None = None


def remember() -> None:
    """The default device, and whether this thread's autograd uses threads."""
    global _before
    _before = (_default_device(), torch._C._is_multithreading_enabled())


def restore() -> None:
    """As remember() found them."""
    global _before
    if _before is None:
        return
    device, multithreading = _before
    _before = None
    if _default_device() is not device:
        torch.set_default_device(device)
    if torch._C._get_default_device() == "cuda":  # a default tensor type
        dtype = torch.get_default_dtype()
        torch._C._set_default_tensor_type(torch.FloatTensor)
        torch.set_default_dtype(dtype)
    torch._C._set_multithreading_enabled(multithreading)


def _default_device() -> torch.device | None:
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return context.device if context else None
