"""The memory that CUDA takes for a process before any tensor: the context."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from anydevice.devices.catalogue import Card
from anydevice.errors import UsageError
from anydevice.text import size_of

MIB = 1 << 20

# Note [What the CUDA context is made of]
# 1. Local memory (stacks) for every thread that the card can run at once. The driver reserves it
#    when the context is made, so it grows with the card: about 2 KiB per thread, which is 319 MiB
#    for the 163,840 threads of a Titan V and 246 MiB for the 125,952 of an RTX 3090.
# 2. Code. With eager loading, all kernels of PyTorch, cuBLAS and cuDNN for this generation of
#    cards; CUDA 11's libraries have about twice as many as CUDA 10's. With lazy loading, which
#    PyTorch 1.13 made its default and which needs CUDA 11.7, only the kernels that were used.
PER_THREAD = 2048
LAZY = (150 * MIB, 10 * MIB, 370 * MIB)  # value, least and most of the code
EAGER = {10: (690 * MIB, 560 * MIB, 780 * MIB), 11: (1200 * MIB, 1020 * MIB, 1450 * MIB)}
FIRST_LAZY = (11, 7)
NEWEST = (13, 0)  # of the default wheel of torch 2.13
SUMMARY = (
    "a stack for each thread that the card can run at once, and the code of the kernels, for which "
    "the middle of published sizes is assumed. --context gives a measured size; --json has the "
    "sources"
)
SOURCE = (
    "2 KiB of stack for each thread that the card can run at once (Titan V: 319 MiB with PyCUDA, "
    "pytorch/pytorch issue 28394; RTX 3090: 256 MiB, invoke-ai/InvokeAI issue 9413), and code. "
    "Lazily loaded (CUDA 11.7 and newer): 10 to 370 MiB (274 MiB in all, pytorch/pytorch pull "
    "request 86509; 607 to 618 MiB in all on an A10G); the value between is assumed. Eagerly "
    "loaded: with CUDA 10, 690 MiB (Titan V 1,006 MiB in all, issue 28394; GTX 1080 721 MiB, issue "
    "55277; RTX 2080 Ti 878 MiB, issue 49877); with CUDA 11, 1,200 MiB (V100 1,343 MiB in all, "
    "transformers' guide; RTX 3090 1,487 and 1,687 MiB, issues 49877 and 55277)"
)


@dataclass(frozen=True)
class Context:
    """The bytes of a context: the likely figure and its range.

    >>> Context.of(card("t4")).value >> 20  # doctest: +SKIP
    230
    """

    value: int
    low: int
    high: int

    @classmethod
    def exactly(cls, size: int) -> Context:
        """A context that was measured."""
        return cls(size, size, size)

    @classmethod
    def of(cls, card: Card, cuda: tuple[int, int] | None = None) -> Context:
        """A card's context with this version of CUDA; by default the newest one.

        CUDA_MODULE_LOADING=EAGER is obeyed.
        """
        version = cuda or NEWEST
        asked = os.environ.get("CUDA_MODULE_LOADING", "").upper()
        lazy = version >= FIRST_LAZY and asked != "EAGER"
        code = LAZY if lazy else EAGER[11 if version[0] >= 11 else 10]
        stacks = PER_THREAD * card.multiprocessors * card.threads_per_multiprocessor
        return cls(*(stacks + size for size in code))


def context_size(text: str | int) -> int:
    """Bytes of a context: `1343` (MiB, as nvidia-smi prints it), `1343MiB`, `1.3GiB`."""
    return size_of(f"{text}MiB") if re.fullmatch(r"\s*\d+\s*", str(text)) else size_of(text)


def cuda_version(text: str) -> tuple[int, int]:
    """The parts of a version: `cuda_version("11.3") == (11, 3)`."""
    found = re.fullmatch(r"(\d{1,2})(?:\.(\d{1,2}))?(?:\.\d+)?", str(text).strip())
    if not found or int(found[1]) < 8:
        raise UsageError(f"expected a version of CUDA such as 11.3 or 12, got {text!r}.")
    return int(found[1]), int(found[2] or 0)
