"""torch.cuda on a build without CUDA: the names of torch._C that its own Python code calls.

Each module here holds the names of one part; nothing of torch.cuda is rewritten.
"""

import importlib
from typing import Any

import torch

from anydevice.devices.catalogue import Card
from anydevice.virtual.surface import (
    comm,
    compiling,
    devices,
    hollow,
    jiterator,
    libraries,
    memory,
    storage,
    streams,
)

_ABSENT = object()
_before: list[tuple[Any, str, Any]] = []


def show(gpus: int, gpu: Card, *, without_values: bool) -> None:
    """Makes torch.cuda see the GPUs."""
    names = {
        **devices.names(gpus, gpu),
        **memory.names(),
        **streams.names(),
        **libraries.names(),
        **comm.names(),
        **jiterator.names(),
    }
    for name, value in names.items():
        replace(torch._C, name, value)
    parts = (devices.attributes(gpu), storage.attributes(), libraries.attributes())
    more = (comm.attributes(), compiling.attributes())
    for part in (*parts, *more, hollow.attributes() if without_values else ()):
        for owner, name, value in part:
            replace(owner, name, value)
    _reload_streams()


def hide() -> None:
    """Puts back what show() replaced."""
    while _before:
        owner, name, value = _before.pop()
        if value is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, value)
    torch.cuda._initialized = False
    torch.cuda._cached_device_count = None
    devices.ask_again()
    _reload_streams()


def replace(owner: Any, name: str, value: Any) -> None:
    """Sets an attribute until hide()."""
    _before.append((owner, name, vars(owner).get(name, _ABSENT)))
    setattr(owner, name, value)


def _reload_streams() -> None:
    """torch.cuda.Stream and Event took their bases from torch._C when they were imported."""
    module = importlib.reload(torch.cuda.streams)
    for name in ("Stream", "Event", "ExternalStream"):
        setattr(torch.cuda, name, getattr(module, name))
