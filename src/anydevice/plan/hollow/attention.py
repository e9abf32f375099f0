"""Which kernel attention takes: which ones a run took, and the one that `--sdpa` asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from anydevice.errors import UsageError, did_you_mean

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
TEXTS = {"flash": "flash", "efficient": "memory-efficient", "cudnn": "cuDNN", "math": "math"}


def kernel_name(text: str) -> str:
    """The kernel that `--sdpa` names.

    >>> kernel_name("cuDNN")
    'cudnn'
    """
    if text.lower() in BACKENDS:
        return text.lower()
    hint = did_you_mean(text, BACKENDS, most=1)
    raise UsageError(f"expected a kernel of attention after --sdpa, got {text!r}: {hint}")


@contextmanager
def preferred(kernel: str | None) -> Iterator[None]:
    """Inside the block, attention takes this kernel wherever it can.

    Elsewhere PyTorch's order decides. A program that allows only others has the last word.
    """
    if kernel is None:
        yield
        return
    first = BACKENDS[kernel]
    others = [backend for backend in BACKENDS.values() if backend != first]
    with sdpa_kernel([first, *others], set_priority=True):
        yield


class Attention:
    """The kernels of `scaled_dot_product_attention` that a run took, in order."""

    def __init__(self) -> None:
        self.taken: dict[str, None] = {}

    def see(self, packet: Any) -> None:
        """An op is about to run."""
        if name := KERNELS.get(packet):
            self.taken[name] = None

    def note(self, asked: str | None) -> str:
        """A sentence for the answer; empty if there was no attention."""
        if not self.taken:
            if not asked:
                return ""
            return f"--sdpa {asked}: the program does not call scaled_dot_product_attention."
        taken = " and ".join(TEXTS[name] for name in self.taken)
        said = f"Attention takes the {taken} kernel{'s' * (len(self.taken) > 1)}"
        if asked and asked not in self.taken:
            return (
                f"{said}: the {TEXTS[asked]} one, which --sdpa asks for, does not take these "
                "tensors on this card, or the program does not allow it."
            )
        return f"{said}." if asked else f"{said} (--sdpa chooses another)."


def _kernels() -> dict[Any, str]:
    aten = torch.ops.aten
    named = {
        getattr(aten, f"_scaled_dot_product_{name}_attention"): name
        for name in ("flash", "efficient", "cudnn")
    }
    return {**named, aten._safe_softmax: "math"}  # which the mathematics alone calls


KERNELS = _kernels()
