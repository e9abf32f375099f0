"""Parameters that get gradients and that no optimizer has, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from anydevice.check.trace import NOWHERE, Site


@dataclass(frozen=True)
class Made:
    """When and where a parameter was given to a module, or an optimizer was made."""

    order: int
    site: Site


@dataclass(frozen=True)
class Untrained:
    """Some parameters of a network.

    Attributes:
        owner: The network's class.
        names: The parameters' names in it.
        why: "later" than the optimizer, in "forward", in a plain "list", a plain "attribute", or
            "left out".
        site: Where they are made; for those that are left out, where the optimizer is.
        bytes: The size of their gradients.
        attribute: The name of the list, and its type.
    """

    owner: str
    names: tuple[str, ...]
    why: str
    site: Site = NOWHERE
    bytes: int = 0
    attribute: str = ""
    container: str = ""


def untrained(
    networks: Sequence[nn.Module],
    optimizers: Sequence[Optimizer],
    registered: Mapping[int, Made],
    made: Mapping[int, Made],
) -> Iterator[Untrained]:
    """What no optimizer has of these networks, just before an optimizer steps."""
    held = {id(p) for optimizer in optimizers for p in trained_by(optimizer)}
    last = max((made[id(o)] for o in optimizers if id(o) in made), key=_order, default=None)
    for network in networks:
        yield from _attributes(network, held)
        missing = {name: p for name, p in network.named_parameters() if _is_missing(p, held)}
        if not missing:
            continue
        names, owner = tuple(missing), type(network).__name__
        known = [registered[id(p)] for p in missing.values() if id(p) in registered]
        site = known[0].site if known else NOWHERE
        partly = any(id(p) in held for p in network.parameters())
        later = len(known) == len(missing) and all(last and k.order > last.order for k in known)
        if later and any(place.function == "forward" for place in site.frames):
            yield Untrained(owner, names, "forward", site)
        elif partly and later:
            yield Untrained(owner, names, "later", site)
        elif found := _in_a_list(network, networks, held):
            parent, attribute, container = found
            yield Untrained(parent, names, "list", site, attribute=attribute, container=container)
        else:
            size = sum(p.grad.nbytes for p in missing.values() if p.grad is not None)
            where = last.site if last else NOWHERE
            yield Untrained(owner, names, "left out", where, size)


def trained_by(optimizer: Optimizer) -> list[Tensor]:
    """All parameters of an optimizer."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def graded(optimizer: Optimizer) -> bool:
    """Whether any of its parameters has a gradient."""
    return any(p.grad is not None for p in trained_by(optimizer))


def dtype_of(optimizer: Optimizer) -> str:
    """The dtype of its first parameter."""
    first = next(iter(trained_by(optimizer)), None)
    return "" if first is None else str(first.dtype).removeprefix("torch.")


def size_of(optimizer: Optimizer) -> int:
    """The bytes of its parameters on GPUs."""
    return sum(p.nbytes for p in trained_by(optimizer) if not is_lazy(p) and p.is_cuda)


def _order(made: Made) -> int:
    return made.order


def _is_missing(parameter: Tensor, held: set[int]) -> bool:
    trains = parameter.requires_grad and not is_lazy(parameter) and parameter.grad is not None
    return trains and id(parameter) not in held


def _in_a_list(
    network: nn.Module, networks: Sequence[nn.Module], held: set[int]
) -> tuple[str, str, str] | None:
    """A module of another network that has this one in a plain container: class, name, type."""
    for other in networks:
        if other is network or not any(id(p) in held for p in other.parameters()):
            continue
        for part in other.modules():
            for name, value in vars(part).items():
                kind = type(value)
                items: Any = value.values() if kind is dict else value
                plain = kind in (list, tuple, dict) and not name.startswith("_")
                if plain and any(item is network for item in items):
                    return type(part).__name__, name, kind.__name__
    return None


def _attributes(network: nn.Module, held: set[int]) -> Iterator[Untrained]:
    for part in network.modules():
        for name, value in vars(part).items():
            plain = isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
            if plain and value.is_leaf and _is_missing(value, held):
                yield Untrained(type(part).__name__, (name,), "attribute")
