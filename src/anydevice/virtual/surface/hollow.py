"""What is read from a hollow GPU: numbers are zero, and a printed tensor shows none."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch

from anydevice.notices import say_once
from anydevice.virtual import core
from anydevice.virtual.events import user_line
from anydevice.virtual.surface import distributed


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """Printing, which would look for the largest value, and saving, which would keep zeros."""
    core.library().anydevice_tell_line(_tell_line)
    printed: Any = torch._tensor_str._str

    def without_values(tensor: torch.Tensor, *, tensor_contents: Any = None) -> str:
        if not tensor.is_cuda or tensor_contents is not None:
            return str(printed(tensor, tensor_contents=tensor_contents))
        text = str(printed(tensor.detach().to("meta")))
        return text.replace("device='meta'", f"device='{tensor.device}'")

    yield torch._tensor_str, "_str", without_values
    yield torch, "save", _saving(torch.save)
    yield torch.serialization, "save", torch.save
    yield from distributed.without_values()


def _saving(save: Any) -> Any:
    """torch.save, which replaces no file but its own: earlier training is worth more than zeros."""
    written: set[str] = set()

    def save_hollow(obj: object, f: Any, *arguments: Any, **options: Any) -> None:
        if isinstance(f, str | os.PathLike):
            path = os.path.realpath(f)
            if path not in written and os.path.exists(path) and os.path.getsize(path):
                say_once(f"{os.fspath(f)} is left as it is: a hollow GPU has no values to save.")
                return
            written.add(path)
        say_once("torch.save writes zeros for what is on a hollow GPU, as large as the values.")
        save(obj, f, *arguments, **options)

    return save_hollow


def _tell(text: Any, size: int) -> None:
    file, line = user_line(sys._getframe(1))
    if file:
        where = f" at {os.path.basename(file)}:{line}".encode()[: size - 1]
        ctypes.memmove(text, where + b"\0", len(where) + 1)


_tell_line = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t)(_tell)
