"""CPU against GPU, measured honestly: warmed up, waited for, and beside what each card could do."""

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anydevice.bench.findings import Findings
    from anydevice.devices.choose import DeviceLike


class _Room(ModuleType):
    """`ad.bench()`: the function has the name of its room, so the room can be called."""

    def __call__(
        self,
        devices: "Sequence[DeviceLike] | None" = None,
        kinds: Sequence[str] | None = None,
        *,
        full: bool = False,
    ) -> "Findings":
        from anydevice.bench.suite import bench

        return bench(devices, kinds, full=full)


sys.modules[__name__].__class__ = _Room
