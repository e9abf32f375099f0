"""The numbers a network is trained in: float32, TF32, or half precision where that is safe."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from anydevice.errors import UsageError

NAMES = ("fp32", "tf32", "bf16", "fp16", "auto")
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """One of NAMES, on a device."""

    name: str
    device: torch.device

    @property
    def autocast(self) -> AbstractContextManager[object]:
        """The context of a forward pass; it may be entered again and again."""
        if self.name in HALVES:
            return torch.autocast(self.device.type, HALVES[self.name])
        return nullcontext()

    def scaler(self) -> torch.amp.GradScaler | None:
        """float16 needs its gradients scaled, bfloat16 has float32's range."""
        return torch.amp.GradScaler(self.device.type) if self.name == "fp16" else None

    def matmuls(self) -> AbstractContextManager[None]:
        """float32 products and convolutions in TF32 inside the block, as before after it."""
        return float32_products("tf32") if self.name == "tf32" else nullcontext()


@contextmanager
def float32_products(how: str) -> Iterator[None]:
    """float32 products and convolutions in "tf32" or whole ("ieee") inside, as before after it."""
    cudnn: Any = torch.backends.cudnn
    kinds: tuple[Any, ...] = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
    before = [kind.fp32_precision for kind in kinds]
    try:
        for kind in kinds:
            kind.fp32_precision = how
        yield
    finally:
        for kind, precision in zip(kinds, before, strict=True):
            kind.fp32_precision = precision


def precision_of(name: str, device: torch.device) -> Precision:
    """The precision by name; "auto" is the fastest that trains safely on this device."""
    if name not in NAMES:
        raise UsageError(f"expected a precision among {', '.join(NAMES)}, got {name!r}.")
    return Precision(_fastest(device) if name == "auto" else name, device)


def _fastest(device: torch.device) -> str:
    """bfloat16 where the hardware has it; a CPU gains only if it has units for it."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp16"
    if device.type == "cpu":
        return "bf16" if torch.cpu._is_amx_tile_supported() else "fp32"
    return "bf16" if device.type == "xpu" else "fp32"
