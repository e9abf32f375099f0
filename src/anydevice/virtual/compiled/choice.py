"""How torch.compile compiles on a virtual GPU: as for a card, or not at all."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from anydevice.virtual.compiled.names import MissingNameError, inductor_names
from anydevice.virtual.machine import enabled

CHOICE = "ANYDEVICE_COMPILE"  # "eager": as written
INDUCTORS = ("inductor", "cudagraphs")  # backends of PyTorch that need a card
OP_BY_OP = ("eager", "eager_noexcept", "aot_eager", "aot_eager_decomp_partition")  # that do not
WITHOUT_TRITON = "Triton is not installed; pip install 'anydevice[compile]' brings it"


def backend_of(given: Any) -> Any:
    """The backend that torch.compile takes: what it is given, or its default."""
    if given is not None:
        return given
    registry = sys.modules.get("torch._dynamo.backends.registry")
    default = getattr(registry, "get_default_backend", None)
    return default() if default else "inductor"


def is_inductors(backend: Any) -> bool:
    """Whether it is one of PyTorch's that generate code, or graphs, for a card."""
    return isinstance(backend, str) and backend in INDUCTORS


def is_op_by_op(backend: Any) -> bool:
    """Whether it is one of PyTorch's that call the graph's ops one by one."""
    return isinstance(backend, str) and backend in OP_BY_OP


def why_not() -> str:
    """The reason why programs are not compiled here; nothing if they are."""
    here = enabled()
    if here is None:
        return "there is no virtual GPU"
    if reason := unavailable(hollow=here.hollow):
        return reason
    try:
        return _put_in_place(here.hollow)
    except MissingNameError as error:
        return str(error)


def unavailable(*, hollow: bool = True) -> str:
    """The same, before there is a virtual GPU."""
    if os.environ.get(CHOICE) == "eager":
        return f"{CHOICE} is eager"
    return WITHOUT_TRITON if hollow and find_spec("triton") is None else ""


def _put_in_place(hollow: bool) -> str:
    """Prepares Inductor, until the GPUs go."""
    inductor_names()
    from anydevice.virtual import surface

    if surface.compiles():
        return ""
    home = "hollow_inductor" if hollow else "host_inductor"
    inductor = import_module(f"anydevice.virtual.compiled.{home}")
    surface.prepare_compiling(inductor.attributes())
    return ""
