"""What is read from a hollow GPU: numbers are zero, and a printed tensor shows none."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch

from anydevice.frames import own_place
from anydevice.notices import say_once
from anydevice.virtual import core
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
    yield torch._C._nn, "cross_entropy_loss", _cross_entropy(torch._C._nn.cross_entropy_loss)
    yield from distributed.without_values()


def _cross_entropy(loss: Any) -> Any:
    """With weights and smoothing PyTorch selects the targets that count: nobody knows how many."""

    def cross_entropy_loss(
        input: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor | None = None,
        reduction: int = 1,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> Any:
        of_classes = input.shape == target.shape  # probabilities, of which all count
        if weight is None or of_classes or not input.is_cuda or not 0 < label_smoothing <= 1:
            return loss(input, target, weight, reduction, ignore_index, label_smoothing)
        classes = int(input.dim() > 1)
        likely = torch.log_softmax(input, classes)
        nll_loss: Any = torch._C._nn.nll_loss_nd
        plain = nll_loss(likely, target, weight, reduction, ignore_index)
        shape = [-1 if dim == classes else 1 for dim in range(input.dim())]
        smooth = -(likely * weight.view(shape)).sum(classes)
        ignored = target == ignore_index
        smooth = smooth.masked_fill(ignored, 0)
        if reduction == 1:
            counted = weight.gather(0, target.masked_fill(ignored, 0).flatten())
            smooth = smooth.sum() / counted.masked_fill(ignored.flatten(), 0).sum()
        elif reduction == 2:
            smooth = smooth.sum()
        return label_smoothing / input.shape[classes] * smooth + (1 - label_smoothing) * plain

    return cross_entropy_loss


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
    file, line = own_place(sys._getframe(1))
    if file:
        where = f" at {os.path.basename(file)}:{line}".encode()[: size - 1]
        ctypes.memmove(text, where + b"\0", len(where) + 1)


_tell_line = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t)(_tell)
