"""CPU against GPU, measured honestly: warmed up, synchronised, and compared with a card's peak."""

from anydevice.rooms import callable_room

callable_room(__name__, "anydevice.bench.suite")
