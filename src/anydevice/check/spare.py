"""Copies of a network's weights on a GPU that are no network's own: state dicts, deep copies."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit import ScriptModule

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Spare:
    """One copy.

    Attributes:
        network: The class of the network that it is of.
        addresses: Where its tensors are.
        storages: The ids of their storages.
    """

    network: str
    addresses: frozenset[int]
    storages: frozenset[int]


@dataclass(frozen=True)
class Look:
    """The copies that are there after so many entries of work and events of the allocator."""

    at: int
    event: int
    copies: set[Spare]


def spares(networks: Sequence[nn.Module], copied: set[int]) -> Iterator[Spare]:
    """Those that are there just now.

    Args:
        networks: The networks that the program has called.
        copied: The ids of parameters that the program has made deep copies of.
    """
    own = {id(part) for network in networks for part in network.modules()}
    plain = [one for one in networks if _is_module(one) and _are_plain(_weights(one))]
    used = {t.untyped_storage().data_ptr() for n in plain for t in _weights(n).values()}
    shapes = [(type(n).__name__, n, _shapes(_weights(n))) for n in plain]
    lengths = {len(each) for _, _, each in shapes}
    for one in gc.get_objects():
        found = _state(one, lengths)
        if found is None and _is_module(one) and id(one) not in own:
            found = _weights(one)
        if not found or not _are_plain(found):
            continue
        for name, network, each in shapes:
            deep = _is_module(one)
            same = _same(found, each, any_names=not deep)
            if same and (not deep or all(id(p) in copied for p in network.parameters())):
                spare = _spare(name, list(found.values()))
                if spare.addresses.isdisjoint(used):
                    yield spare
                break


def _are_plain(weights: Mapping[str, Tensor]) -> bool:
    """Whether each has its own bytes: no DTensor, no lazy parameter, none of another layout."""
    kinds = (Tensor, nn.Parameter)
    return all(type(t) in kinds and t.layout == torch.strided for t in weights.values())


def _is_module(one: Any) -> bool:
    """Whether it is a network in Python: one of TorchScript keeps its weights elsewhere."""
    return issubclass(type(one), nn.Module) and not issubclass(type(one), ScriptModule)


def _state(one: Any, lengths: set[int]) -> dict[str, Tensor] | None:
    """A dict of tensors on a GPU that are no parameters, if it has as many as a network."""
    if not issubclass(type(one), dict) or len(one) not in lengths:
        return None
    plain = all(type(value) is Tensor and value.is_cuda for value in one.values())
    return one if plain and all(type(key) is str for key in one) else None


def _same(found: Mapping[str, Tensor], shapes: Shapes, *, any_names: bool) -> bool:
    """Whether these are the network's weights, perhaps with a prefix to their names."""
    if len(found) != len(shapes):
        return False
    pairs = zip(sorted(found.items()), sorted(shapes.items()), strict=True)
    return all(
        t.is_cuda and tuple(t.shape) == shape and (name == own or (any_names and _ends(name, own)))
        for (name, t), (own, shape) in pairs
    )


def _ends(name: str, own: str) -> bool:
    return name.endswith(f".{own}") or own.endswith(f".{name}")


def _weights(network: nn.Module) -> dict[str, Tensor]:
    """What its state dict has, without a call of the program's own hooks."""
    weights: dict[str, Tensor] = dict(network.named_parameters())
    for path, part in network.named_modules():
        kept = (n for n in part._buffers if n not in part._non_persistent_buffers_set)
        for name in kept:
            if (buffer := part._buffers[name]) is not None:
                weights[f"{path}.{name}" if path else name] = buffer
    return weights


def _shapes(weights: Mapping[str, Tensor]) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in weights.items()}


def _spare(name: str, tensors: Sequence[Tensor]) -> Spare:
    addresses = frozenset(tensor.untyped_storage().data_ptr() for tensor in tensors)
    storages = frozenset(tensor.untyped_storage()._cdata for tensor in tensors)
    return Spare(name, addresses, storages)
