"""Layers on the devices that you choose, and the moves of activations between them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import translate
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import nn

from anydevice.devices.choose import DeviceLike, exact, pick
from anydevice.devices.move import move
from anydevice.errors import UsageError

Network = TypeVar("Network", bound=nn.Module)
Homes = Mapping[nn.Module, torch.device]

_FETCHES = "_anydevice_fetches"  # where a module keeps the handles of its hooks


def place(module: Network, devices: Mapping[str, DeviceLike]) -> Network:
    """Put a network's layers on several devices; activations then move between them by themselves.

    Args:
        module: The network; it is changed in place.
        devices: A device for each pattern of layer names. Names are those of `named_modules`, with
            * and ?, and include a layer's children. If several patterns match, the last one
            counts. Layers that no pattern matches stay where they are.

    Returns:
        The network. Each placed layer fetches its inputs to its device, in forward and backward.

    Raises:
        UsageError: A pattern matches no layer, or two layers on different devices share a tensor.
        DeviceNotFound: There is no such device.

    >>> place(network, {"conv*": "cuda:0", "fc*": "cuda:1"})  # doctest: +SKIP
    """
    _refuse_other_types(module, devices)
    targets = {pattern: exact(pick(device)) for pattern, device in devices.items()}
    homes = _assign(module, targets)
    _refuse_torn_tensors(module, homes)
    for child in module.modules():
        for handle in child.__dict__.pop(_FETCHES, []):
            handle.remove()
    for child, device in homes.items():
        child._apply(lambda t, device=device: t.to(device), recurse=False)  # type: ignore[no-untyped-call]
    for layer, device in _whole_layers(module, homes):
        handle = layer.register_forward_pre_hook(_Fetch(device), with_kwargs=True, prepend=True)
        layer.__dict__[_FETCHES] = [handle]
    return module


def is_placed(module: nn.Module) -> bool:
    """Whether `place` has put the module's layers where they are."""
    return any(_FETCHES in child.__dict__ for child in module.modules())


@dataclass(frozen=True)
class _Fetch:
    """A hook that brings a layer's inputs to where it is; a class, so that it can be pickled."""

    device: torch.device  # for a layer without parameters; others say themselves where they are

    def __call__(self, layer: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        tensor = next(chain(layer.parameters(), layer.buffers()), None)
        device = self.device if tensor is None else tensor.device
        # A copy to the CPU that does not block would be read before it has arrived.
        return move((args, kwargs), device, non_blocking=device.type != "cpu")


def _assign(module: nn.Module, targets: Mapping[str, torch.device]) -> Homes:
    """The device of each layer that a pattern names; every pattern has to place at least one."""
    chosen: dict[nn.Module, str] = {}
    layers = dict(module.named_modules(remove_duplicate=False))
    for pattern in targets:
        matches, named = re.compile(translate(pattern)).match, set()
        for name, layer in layers.items():  # parents come before their children
            if matches(name) or (name and name.rpartition(".")[0] in named):
                named.add(name)
                chosen[layer] = pattern
        if not named:
            raise UsageError(_no_match(pattern, list(layers)))
    for pattern in targets:
        if pattern not in chosen.values():
            raise UsageError(
                f"expected every pattern to place a layer, got {pattern!r}, whose layers all match "
                "a later pattern too: name the general pattern first, since the last one counts."
            )
    return {layer: targets[pattern] for layer, pattern in chosen.items()}


def _no_match(pattern: str, names: list[str]) -> str:
    layers = [name for name in names if name]
    listed = ", ".join(layers[:12]) + (", …" if len(layers) > 12 else "")
    known = (
        f"the layers are: {listed}." if layers else 'there are no layers inside; "" is the whole.'
    )
    return f"expected a pattern that matches a layer, got {pattern!r}; {known}"


def _refuse_other_types(module: object, devices: object) -> None:
    if not isinstance(module, nn.Module):
        raise UsageError(f"expected a torch.nn.Module to place, got {type(module).__name__}.")
    if not isinstance(devices, Mapping) or not all(isinstance(p, str) for p in devices):
        raise UsageError(
            f'expected patterns with devices, such as {{"fc*": "cuda:1"}}, got {devices!r}; '
            "to put all on one device, use network.to(device)."
        )


def _refuse_torn_tensors(module: nn.Module, homes: Homes) -> None:
    """A tensor that two layers share cannot live on two devices."""
    owners: dict[int, tuple[str, torch.device]] = {}
    for path, child in module.named_modules():
        for name, tensor in _own_tensors(child).items():
            device = homes.get(child, tensor.device)
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


def _whole_layers(module: nn.Module, homes: Homes) -> Iterator[tuple[nn.Module, torch.device]]:
    """The largest layers that are whole on one device: their inputs are all that has to move."""
    device = _only_device(module, homes)
    is_called = type(module).forward is not nn.Module.forward  # a ModuleList is not
    if device is not None and is_called:
        yield module, device
        return
    for child in module.children():
        yield from _whole_layers(child, homes)


def _only_device(module: nn.Module, homes: Homes) -> torch.device | None:
    """The device that all of a module is on; None if it is split, or runs anywhere."""
    found = None
    for child in module.modules():
        here = homes.get(child) or next((t.device for t in _own_tensors(child).values()), None)
        if found and here and here != found:
            return None
        found = found or here
    return found
