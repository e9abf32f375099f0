"""A GPU that is not there, at PyTorch's own CUDA dispatch key; the CPU computes its numbers."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anydevice.virtual.events import listening as listening
    from anydevice.virtual.machine import disable as disable
    from anydevice.virtual.machine import enable as enable
    from anydevice.virtual.machine import enabled as enabled
    from anydevice.virtual.machine import virtual_gpus as virtual_gpus

__all__ = ["disable", "enable", "enabled", "listening", "virtual_gpus"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'anydevice.virtual' has no attribute {name!r}")
    home = "events" if name == "listening" else "machine"
    return getattr(import_module(f"anydevice.virtual.{home}"), name)
