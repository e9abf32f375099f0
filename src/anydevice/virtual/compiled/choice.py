"""How torch.compile compiles on a virtual GPU: as for a card, or not at all."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec

from anydevice.virtual.compiled.names import MissingNameError, inductor_names
from anydevice.virtual.machine import enabled

CHOICE = "ANYDEVICE_COMPILE"  # "eager": as written
WITHOUT_TRITON = "Triton is not installed; pip install 'anydevice[compile]' brings it"


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
