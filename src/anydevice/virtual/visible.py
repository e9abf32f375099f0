"""CUDA_VISIBLE_DEVICES: which virtual GPUs a process sees, and in which order.

It is read as CUDA reads it: once in a process, when a GPU is first used.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_int
from itertools import takewhile
from typing import Any
from uuid import UUID, uuid5

from anydevice.virtual import core

VARIABLE = "CUDA_VISIBLE_DEVICES"
OF_VIRTUAL_GPUS = UUID("a17de51c-e000-4000-8000-000000000000")  # a namespace
_A_GPU = re.compile(r"\s*\+?\d|GPU-")

# A value that hid the real GPUs when virtual ones were asked for; it does not hide these, too.
_meant_for_real_gpus: str | None = None


def hides_real_gpus() -> bool:
    """Whether the variable is there and names no GPU, as it must next to real ones."""
    value = os.environ.get(VARIABLE)
    return value is not None and not _A_GPU.match(value)


def leave_aside() -> None:
    """Takes a variable that names no GPU as it stands for one that is about real GPUs."""
    global _meant_for_real_gpus
    _meant_for_real_gpus = os.environ[VARIABLE] if hides_real_gpus() else None


@contextmanager
def real_gpus_hidden(hidden: bool) -> Iterator[None]:
    """Hides the real GPUs from the code inside, in a process whose environment does not."""
    before = os.environ.get(VARIABLE)
    if hidden:
        os.environ[VARIABLE] = ""
    try:
        yield
    finally:
        if before is not None:
            os.environ[VARIABLE] = before
        elif hidden:
            del os.environ[VARIABLE]


def uuid(gpu: int) -> str:
    """The UUID of one of the machine's GPUs, which the variable may name it by."""
    return str(uuid5(OF_VIRTUAL_GPUS, str(gpu)))


class Visible:
    """The GPUs that a process sees of those that its machine has."""

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus
        self.chosen: list[int] | None = None

    def now(self) -> list[int]:
        """The machine's GPUs that the variable names as it stands, in its order."""
        import torch

        if VARIABLE not in os.environ or os.environ[VARIABLE] == _meant_for_real_gpus:
            return list(range(self.gpus))
        named: list[Any] = torch.cuda._parse_visible_devices()
        if named and isinstance(named[0], str):
            uuids = [f"GPU-{uuid(gpu)}" for gpu in range(self.gpus)]
            named = torch.cuda._transform_uuid_to_ordinals(named, uuids)
        return list(takewhile(lambda gpu: gpu < self.gpus, named))

    def for_good(self) -> list[int]:
        """The same at the first call; what it was then from that on."""
        if self.chosen is None:
            self.chosen = self.now()
            numbers = (c_int * len(self.chosen))(*self.chosen)
            core.library().anydevice_show_only(len(self.chosen), numbers)
        return self.chosen
