"""torch.cuda on a build without CUDA: the names of torch._C that its own Python code calls.

Each module here holds the names of one part; nothing of torch.cuda is rewritten. `names()` must do
with a torch that is half loaded, since `anydevice run` gives them to torch._C before torch.cuda is
there; `attributes()` are what torch's Python modules took from torch._C when they were imported.
"""

import copy
import importlib.util
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from anydevice.devices.catalogue import Card
from anydevice.virtual.compiled import cuda_sources
from anydevice.virtual.loading import Waiting
from anydevice.virtual.surface import (
    comm,
    compiling,
    defaults,
    devices,
    distributed,
    errors,
    graphs,
    hollow,
    jiterator,
    libraries,
    memory,
    monitoring,
    overrides,
    pools,
    profiling,
    reductions,
    refused,
    sanitizer,
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
EXTENSIONS = "torch.utils.cpp_extension"
DYNAMO = "torch._dynamo.trace_rules"
CONSTANTS = "torch._dynamo.variables.builder"
INDUCTOR = "torch._inductor.compile_fx"
MASKS = "torch.nn.attention.flex_attention"
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
    cuda_sources,
    distributed,
    errors,
    libraries,
    monitoring,
    profiling,
    reductions,
    refused,
    sanitizer,
    sharing,
    storage,
    tensor_types,
)

Entries = Iterable[tuple[Any, str, Any]]  # owner, name, value

_ABSENT = object()
_before: list[tuple[Any, str, Any]] = []
_left_out: list[str] = []
_prepared = False
imported = Waiting()


def left_out() -> list[str]:
    """What this torch lacks or has otherwise, so that it was not replaced; each with the reason."""
    return list(_left_out)


def show_names(gpus: int, gpu: Card) -> None:
    """Gives torch._C the names of a CUDA build."""
    _left_out.clear()
    _show("devices", lambda: _of_c(devices.names(gpus, gpu)))
    _show("tuning", lambda: _of_c(tuning.names(gpu)))
    for part in NAMES:
        _show(_title(part), partial(_named, part))


def show_attributes(gpu: Card, *, without_values: bool) -> None:
    """Gives torch's Python modules what they would have found in such a torch._C."""
    _show("devices", lambda: devices.attributes(gpu))
    for part in ATTRIBUTES:
        _show(_title(part), part.attributes)
    if without_values:
        _show("hollow", hollow.attributes)
    _show("devices", _fresh_state)
    if not issubclass(torch.cuda.streams.Stream, torch._C._CudaStreamBase):
        for name in DERIVED:
            _show(name, partial(_derived_anew, name))
        _show("sharing", sharing.send_events)
    _show("graphs", graphs.attributes)
    _show("overrides", overrides.put_off)
    imported.wait("triton", partial(_show, "triton", _kernels))
    imported.wait(EXTENSIONS, partial(_show, "extensions", cuda_sources.extensions))
    for module in compiling.EARLY:
        imported.wait(module, partial(_show, _ending(module), partial(compiling.early, module)))
    imported.wait(DYNAMO, partial(_show, "dynamo", compiling.leave_out))
    imported.wait(CONSTANTS, partial(_show, "constants of Dynamo", compiling.constants))
    imported.wait(INDUCTOR, _inductor)
    imported.prepare("numba", cuda_sources.simulate_numba)
    imported.refuse("cupy", cuda_sources.no_cupy)
    if without_values:
        imported.wait(MASKS, partial(_show, "flex_attention", _masks))
    defaults.remember()


def compiles() -> bool:
    """Whether Inductor is prepared for these GPUs."""
    return _prepared


def prepare_compiling(entries: Entries) -> None:
    """Replaces names of Inductor until hide()."""
    global _prepared
    for owner, name, value in list(entries):
        replace(owner, name, value)
    compiling.ask_again()
    _prepared = True


def hide() -> None:
    """Puts back what was replaced, all that can be, also where an enable() stopped half-way."""
    global _prepared
    prepared, _prepared = _prepared, False
    with ExitStack() as steps:  # runs them all, the last one first
        if prepared:
            steps.callback(compiling.ask_again)
        steps.callback(imported.forget)
        steps.callback(devices.ask_again)
        while _before:
            steps.callback(_put_back, *_before.pop(0))
        steps.callback(overrides.put_back)
        steps.callback(defaults.restore)


def _show(part: str, entries: Callable[[], Entries | None]) -> None:
    """Replaces what a part names; where it meets a name that is missing, it ends and is noted."""
    try:
        for owner, name, value in entries() or ():
            replace(owner, name, value)
    except (AttributeError, ImportError) as error:
        _left_out.append(f"{part}: {error}")


def _inductor() -> None:
    """As for torch.compile, since a program that imports it may call it by itself."""
    compiling.prepare()
    _show("ahead of time", cuda_sources.ahead_of_time)


def _kernels() -> Entries:
    """Triton's, whose import takes long: only where the program imports it."""
    from anydevice.virtual.compiled import kernels

    return kernels.attributes()


def _masks() -> Entries:
    """create_block_mask, which is imported by its name."""
    from anydevice.virtual.compiled import density

    return density.attributes()


def _of_c(names: dict[str, Any]) -> Entries:
    return ((torch._C, name, value) for name, value in names.items())


def _named(part: Any) -> Entries:
    return _of_c(part.names())


def _title(part: Any) -> str:
    return _ending(str(part.__name__))


def _ending(name: str) -> str:
    return name.rpartition(".")[2]


def _fresh_state() -> Entries:
    """What torch.cuda keeps until its first use, which is ahead again."""
    for state in ("_queued_calls", "_lazy_seed_tracker"):
        yield torch.cuda, state, copy.copy(getattr(torch.cuda, state))
    yield torch.cuda, "_initialized", False


def _put_back(owner: Any, name: str, value: Any) -> None:
    if value is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


def replace(owner: Any, name: str, value: Any) -> None:
    """Sets an attribute until hide()."""
    _before.append((owner, name, vars(owner).get(name, _ABSENT)))
    setattr(owner, name, value)


def _derived_anew(name: str) -> Entries:
    """A module's classes, made by running its code once more, in the place of the first."""
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
                    yield owner, key, getattr(again, key)
        elif key in vars(torch._C) and not key.startswith("__"):
            yield module, key, getattr(torch._C, key)
