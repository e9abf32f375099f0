"""Whether training fits a GPU, with which batch, and how long a step takes: by a hollow run.

`ad.plan(function, gpus=["t4"])` calls `anydevice.plan.planning.plan`.
"""

from anydevice.rooms import callable_room

callable_room(__name__, "anydevice.plan.planning")
