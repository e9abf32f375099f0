"""Which devices there are, which one to use, moving things to it, and why it went wrong."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anydevice.devices.inventory import Devices


class _Room(ModuleType):
    """`ad.devices()`: the function has the name of its room, so the room can be called."""

    def __call__(self) -> "Devices":
        from anydevice.devices.inventory import devices

        return devices()


sys.modules[__name__].__class__ = _Room
