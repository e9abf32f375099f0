"""Will it fit, which batch, how long is a step: a run on a hollow GPU that is not there tells.

`ad.plan(function, gpus=["t4"])`: the function has the name of its room, so the room can be called.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anydevice.plan.answer import Plan


class _Room(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> "Plan":
        from anydevice.plan.planning import plan

        return plan(*arguments, **options)


sys.modules[__name__].__class__ = _Room
