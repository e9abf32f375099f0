"""CPU against GPU, measured honestly: warmed up, waited for, next to what a card could do."""

from anydevice.rooms import callable_room

callable_room(__name__, "anydevice.bench.suite")
