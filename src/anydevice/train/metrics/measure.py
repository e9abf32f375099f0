"""What one metric is: summed on the device batch by batch, and read at the end of an epoch."""

from copy import copy
from typing import Any

import torch

from anydevice.devices.move import move
from anydevice.train.loop.forward import Result


class Measure:
    """One metric; `kept` names what a checkpoint has to keep of it."""

    kept: tuple[str, ...] = ()
    is_number = True  # or a matrix or a curve, which is not shown in a line
    adds_up = False  # whether the states of several ranks add up to what they measured together

    def reset(self, device: torch.device) -> None:
        """Forget what was measured."""

    def update(self, result: Result) -> None:
        """Take in one batch, without waiting for the device; no gradients are recorded."""

    def skip(self) -> None:
        """Leave out a batch that does not count."""

    def value(self) -> Any:
        """The figure, still on the device."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """What was measured so far."""
        return {name: getattr(self, name) for name in self.kept}

    def set_state(self, state: dict[str, Any], device: torch.device) -> None:
        """Continue from there."""
        for name, value in state.items():
            setattr(self, name, move(value, device))

    def value_of(self, state: dict[str, Any], device: torch.device) -> Any:
        """The figure of another state than its own."""
        other = copy(self)
        other.set_state(state, device)
        return other.value()
