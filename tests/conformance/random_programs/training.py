"""What training adds: recurrent layers, and steps of an optimizer."""

from typing import Any

import torch

from tests.conformance.random_programs.choices import Choices
from tests.conformance.random_programs.running import Running
from tests.conformance.random_programs.values import (
    DEVICES,
    Twin,
    bring_together,
    count_versions_alike,
)

OPTIMIZERS: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (torch.optim.Adam, {"lr": 0.1}),
    (torch.optim.AdamW, {"lr": 0.1, "amsgrad": True}),
    (torch.optim.RMSprop, {"lr": 0.1, "centered": True}),
]
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def recurrent(running: Running, choices: Choices) -> None:
    if running.inside("autocast", "inference_mode"):
        return
    name, device = choices.among(list(GATES)), choices.among(DEVICES)
    length, batch, width, hidden = (1 + choices.below(4) for _ in range(4))
    rows = GATES[name] * hidden

    def new(*shape: int, grad: bool = True) -> Twin:
        return running.new(choices, shape, torch.float32, device, low=-1, high=1, grad=grad)

    state = [new(1, batch, hidden) for _ in range(2 if name == "lstm" else 1)]
    weights = [new(rows, width), new(rows, hidden), new(rows), new(rows)]

    def function(given: torch.Tensor, before: Any, weights: Any) -> Any:
        before = [state.contiguous() for state in before]  # cuDNN refuses another
        before = before if name == "lstm" else before[0]
        made = getattr(torch, name)(given, before, weights, True, 1, 0.0, True, False, False)
        return [one.clone() for one in made]  # cuDNN's backward pass needs its own, unchanged

    running.apply(name, function, new(length, batch, width), state, weights, compare="close")


def optimised(running: Running, choices: Choices) -> None:
    """A step or more of an optimizer, with lists of tensors as CUDA has it by default."""
    leaves = [v for v in running.values if v.strided and v.cpu.is_leaf and v.cpu.grad is not None]
    leaves = [v for v in leaves if v.floats and not v.cpu.is_inference() and not v.overlaps]
    leaves = [v for v in leaves if v.device == leaves[0].device and v.cpu.requires_grad]
    if not leaves:
        return
    (kind, how), steps = choices.among(OPTIMIZERS), 1 + choices.below(2)
    running.trace.append(f"{steps} steps of {kind.__name__}({leaves!r})")
    for where in ("cpu", "gpu"):
        optimizer = kind([getattr(leaf, where) for leaf in leaves], foreach=True, **how)
        for _ in range(steps):
            optimizer.step()
    for leaf in leaves:
        count_versions_alike(leaf)  # on the CPU the ops inside count, too
        running.check(leaf, close=True)
        bring_together(leaf)


KINDS = {"recurrent": (recurrent, 2), "optimised": (optimised, 3)}
