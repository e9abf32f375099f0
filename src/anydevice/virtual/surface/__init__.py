"""torch.cuda on a build without CUDA: the names of torch._C that its own Python code calls.

Each module here holds the names of one part; nothing of torch.cuda is rewritten. `names()` must do
with a torch that is half loaded, since `anydevice run` gives them to torch._C before torch.cuda is
there; `attributes()` are what torch's Python modules took from torch._C when they were imported.
"""

import copy
import importlib.util
import sys
from typing import Any

import torch

from anydevice.devices.catalogue import Card
from anydevice.virtual.surface import (
    comm,
    compiling,
    defaults,
    devices,
    distributed,
    graphs,
    hollow,
    jiterator,
    libraries,
    memory,
    monitoring,
    pools,
    profiling,
    reductions,
    refused,
    sharing,
    storage,
    streams,
    tensor_types,
    tuning,
)

# Their classes derive from names of torch._C.
DERIVED = (
    "torch.cuda.streams",
    "torch.cuda.graphs",
    "torch.cuda.memory",
    "torch.accelerator.graphs",
)
NAMES = (
    comm,
    distributed,
    graphs,
    jiterator,
    libraries,
    memory,
    pools,
    profiling,
    reductions,
    refused,
    sharing,
    streams,
    tensor_types,
)
ATTRIBUTES = (
    compiling,
    distributed,
    libraries,
    monitoring,
    profiling,
    reductions,
    refused,
    sharing,
    storage,
    tensor_types,
)

_ABSENT = object()
_before: list[tuple[Any, str, Any]] = []


def show_names(gpus: int, gpu: Card) -> None:
    """Gives torch._C the names of a CUDA build."""
    names = devices.names(gpus, gpu) | tuning.names(gpu)
    for part in NAMES:
        names |= part.names()
    for name, value in names.items():
        replace(torch._C, name, value)


def show_attributes(gpu: Card, *, without_values: bool) -> None:
    """Gives torch's Python modules what they would have found in such a torch._C."""
    parts = [devices.attributes(gpu), *(part.attributes() for part in ATTRIBUTES)]
    for part in (*parts, hollow.attributes() if without_values else ()):
        for owner, name, value in part:
            replace(owner, name, value)
    for state in ("_queued_calls", "_lazy_seed_tracker"):
        replace(torch.cuda, state, copy.copy(getattr(torch.cuda, state)))
    replace(torch.cuda, "_initialized", False)
    if not issubclass(torch.cuda.streams.Stream, torch._C._CudaStreamBase):
        for name in DERIVED:
            _derive_anew(name)
        sharing.send_events()
    defaults.remember()


def hide() -> None:
    """Puts back what was replaced."""
    defaults.restore()
    while _before:
        owner, name, value = _before.pop()
        if value is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, value)
    devices.ask_again()


def replace(owner: Any, name: str, value: Any) -> None:
    """Sets an attribute until hide()."""
    _before.append((owner, name, vars(owner).get(name, _ABSENT)))
    setattr(owner, name, value)


def _derive_anew(name: str) -> None:
    """Puts a module's classes, made by running its code once more, in the place of the first."""
    module = sys.modules.get(name)
    if module is None:  # torch 2.11 has no torch.accelerator.graphs
        return
    spec = module.__spec__
    assert spec
    assert spec.loader
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    for key, value in list(vars(module).items()):
        if isinstance(value, type) and value.__module__ == name:
            for owner in (module, torch.cuda, torch.accelerator):
                if vars(owner).get(key) is value:
                    replace(owner, key, getattr(again, key))
        elif key in vars(torch._C) and not key.startswith("__"):
            replace(module, key, getattr(torch._C, key))
