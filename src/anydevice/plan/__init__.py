"""Will it fit, which batch, how long is a step: predicted by a run on a hollow GPU.

`ad.plan(function, gpus=["t4"])` calls `anydevice.plan.planning.plan`.
"""

from anydevice.rooms import callable_room

callable_room(__name__, "anydevice.plan.planning")
