"""Device mistakes and hidden costs of a program, found by a run on a virtual GPU.

`ad.check(function, gpus=["t4"])` calls `anydevice.check.checking.check`.
"""

from anydevice.rooms import callable_room

callable_room(__name__, "anydevice.check.checking")
