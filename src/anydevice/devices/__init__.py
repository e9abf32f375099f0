"""Which devices there are, which one to use, moving things to it, and why it went wrong."""

from anydevice.rooms import callable_room

callable_room(__name__, "anydevice.devices.inventory")
