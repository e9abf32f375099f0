"""Which devices there are, which one to use, moving things to it, and why it went wrong."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anydevice.devices.report import Devices


class _Room(ModuleType):
    """The room is called as a function too: `ad.devices()` and `ad.devices.move` are one name."""

    def __call__(self) -> "Devices":
        from anydevice.devices.report import devices

        return devices()


sys.modules[__name__].__class__ = _Room
