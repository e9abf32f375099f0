"""Rooms that can be called: `ad.plan(...)` calls the function that has the room's name."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def callable_room(room: str, module: str) -> None:
    """Lets a room be called as its main function.

    The function's module is imported at the first call, since it may need torch.

    Args:
        room: The room, such as `anydevice.plan`: its last part is the function's name.
        module: Where the function is, such as `anydevice.plan.planning`.
    """
    name = room.rpartition(".")[2]

    def call(self: ModuleType, *arguments: Any, **options: Any) -> Any:
        return getattr(import_module(module), name)(*arguments, **options)

    sys.modules[room].__class__ = type("Room", (ModuleType,), {"__call__": call})
