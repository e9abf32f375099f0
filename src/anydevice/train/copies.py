"""Copies of what a trial is given, on another device."""

import copy
import inspect
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

Known = dict[int, Any]  # tensors by the id of what they are copies of


def copied(
    module: nn.Module, device: torch.device, known: Known | None = None
) -> tuple[Any, Known]:
    """The module on a device, without a second copy of its tensors where it is now.

    `known` has the tensors that were copied already; with those of this module it is the second
    thing returned.
    """
    known = {} if known is None else known
    for tensor in chain(module.parameters(), module.buffers()):
        if id(tensor) not in known and not is_lazy(tensor):
            known[id(tensor)] = _copied_tensor(tensor, device)
    return copy.deepcopy(module, known).to(device), known


def optimizer_over(known: Known, given: Any) -> Any:
    """An optimizer, without its state, over the copies of its parameters.

    A name or a function of the parameters is returned as it is.
    """
    if not isinstance(given, Optimizer):
        return given
    groups = [
        {**group, "params": [known[id(parameter)] for parameter in group["params"]]}
        for group in given.param_groups
    ]
    return new_optimizer(type(given), groups, given.defaults)


def new_optimizer(kind: type[Optimizer], groups: Any, defaults: dict[str, Any]) -> Optimizer:
    """One of this kind, with those of the defaults that its constructor takes."""
    taken = inspect.signature(kind).parameters
    return kind(groups, **{name: value for name, value in defaults.items() if name in taken})


def _copied_tensor(tensor: Tensor, device: torch.device) -> Tensor:
    there = tensor.detach().to(device, copy=True)
    return nn.Parameter(there, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else there
