"""Layers on devices of one's choice, with the moves of activations between them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, TypeVar, cast

import torch
from torch import nn

from anydevice.devices.choose import DeviceLike, pick
from anydevice.devices.move import move
from anydevice.errors import UsageError

Network = TypeVar("Network", bound=nn.Module)

_FETCHES = "_anydevice_fetches"  # where a module keeps the handles of its hooks


def place(module: Network, devices: Mapping[str, DeviceLike]) -> Network:
    """Put layers on devices: `place(network, {"conv*": "cuda:0", "fc*": "cuda:1"})`.

    A pattern names layers as `named_modules` does, with * and ?, and takes their children along;
    of several patterns that match, the last one counts; layers that none matches stay where they
    are. Each layer then fetches its inputs to the device it is on, in forward and backward.
    """
    targets = {pattern: pick(device) for pattern, device in devices.items()}
    assigned = _assign(module, targets)
    _refuse_torn_tensors(module, assigned)
    for child in module.modules():
        for handle in child.__dict__.pop(_FETCHES, []):
            handle.remove()
    for name, child in module.named_modules():
        if name in assigned:
            _move_own_tensors(child, assigned[name])
    for layer, device in _whole_layers(module, assigned):
        handle = layer.register_forward_pre_hook(_Fetch(device), with_kwargs=True, prepend=True)
        layer.__dict__[_FETCHES] = [handle]
    return module


@dataclass(frozen=True)
class _Fetch:
    """A hook that brings a layer's inputs to where it is; a class, so that it can be pickled."""

    device: torch.device  # for a layer without parameters; others say themselves where they are

    def __call__(self, layer: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        tensor = next(chain(layer.parameters(), layer.buffers()), None)
        device = self.device if tensor is None else tensor.device
        return move((args, kwargs), device, non_blocking=True)


def _assign(module: nn.Module, targets: Mapping[str, torch.device]) -> dict[str, torch.device]:
    """The device of each layer by its name; every pattern has to place at least one."""
    chosen: dict[str, str] = {}
    names = [name for name, _ in module.named_modules()]
    for pattern in targets:
        for name in names:
            if any(fnmatchcase(part, pattern) for part in _ancestry(name)):
                chosen[name] = pattern
    for pattern in targets:
        if pattern not in chosen.values():
            raise UsageError(_no_effect(pattern, names))
    return {name: targets[pattern] for name, pattern in chosen.items()}


def _ancestry(name: str) -> Iterator[str]:
    """A layer's name and those of the layers it is part of: a.b.c, a.b, a."""
    yield name
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _no_effect(pattern: str, names: list[str]) -> str:
    layers = [name for name in names if name]
    listed = ", ".join(layers[:12]) + (", …" if len(layers) > 12 else "")
    if any(fnmatchcase(name, pattern) for name in names):
        return (
            f"expected every pattern to place a layer, got {pattern!r}, whose layers all match a "
            "later pattern too: name the general pattern first, since the last one counts."
        )
    return f"expected a pattern that matches a layer, got {pattern!r}; the layers are: {listed}."


def _refuse_torn_tensors(module: nn.Module, assigned: Mapping[str, torch.device]) -> None:
    """A tensor that two layers share cannot live on two devices."""
    owners: dict[int, tuple[str, torch.device]] = {}
    for path, child in module.named_modules(remove_duplicate=False):
        for name, tensor in _own_tensors(child).items():
            device = assigned.get(path, tensor.device)
            full_name = f"{path}.{name}".lstrip(".")
            other, elsewhere = owners.setdefault(id(tensor), (full_name, device))
            if elsewhere != device:
                raise UsageError(
                    f"expected one device for {other} and {full_name}, which are one tensor, "
                    f"got {elsewhere} and {device}: place both layers on the same device."
                )


def _own_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    own = {**module._parameters, **module._buffers}
    return {name: tensor for name, tensor in own.items() if tensor is not None}


def _move_own_tensors(module: nn.Module, device: torch.device) -> None:
    """Move a module's own parameters and buffers, not its children's; parameters stay the same."""
    module._apply(lambda tensor: tensor.to(device), recurse=False)  # type: ignore[no-untyped-call]


def _whole_layers(
    module: nn.Module, assigned: Mapping[str, torch.device]
) -> Iterator[tuple[nn.Module, torch.device]]:
    """The largest layers that are whole on one device: their inputs are all that has to move."""
    homes = {name: assigned.get(name, _home(child)) for name, child in module.named_modules()}
    covered: set[str] = set()
    for name, child in module.named_modules():
        if any(outer in covered for outer in ("", *_ancestry(name))):
            continue
        within = {homes[path] for path in homes if name in ("", *_ancestry(path))} - {None}
        is_called = type(child).forward is not nn.Module.forward  # a ModuleList is not
        if len(within) == 1 and is_called:
            covered.add(name)
            yield child, cast(torch.device, within.pop())


def _home(module: nn.Module) -> torch.device | None:
    """Where a module's own tensors are; None if it has none, and so runs anywhere."""
    return next((tensor.device for tensor in _own_tensors(module).values()), None)
