"""Parameters by the names of their layers: which are frozen, and which learn at other rates."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.optim import Optimizer

from anydevice.errors import UsageError, did_you_mean
from anydevice.train.recipes import OptimizerLike, optimizer_of


class Frozen:
    """The parameters of a network that do not train, by patterns such as "encoder*"."""

    def __init__(self) -> None:
        self.parameters: list[nn.Parameter] = []

    def only(self, network: nn.Module, patterns: Sequence[str]) -> None:
        """Freezes those that match, and has those train again that it froze before."""
        chosen = [p for pattern in patterns for p in named(network, pattern).values()]
        self._set(True)
        self.parameters = [p for p in chosen if p.requires_grad]
        if self.parameters and not any(p.requires_grad for p in _others(network, chosen)):
            self.parameters = []
            raise UsageError(
                f"expected freeze to leave parameters that train, got {list(patterns)}, which "
                "match all of them."
            )
        self._set(False)

    @contextmanager
    def thawed(self) -> Iterator[None]:
        """Inside the block they can train, so that an optimizer takes them and can train later."""
        self._set(True)
        try:
            yield
        finally:
            self._set(False)

    def _set(self, trains: bool) -> None:
        for parameter in self.parameters:
            parameter.requires_grad_(trains)
            if not trains:
                parameter.grad = None  # without one the optimizer leaves it as it is


def optimizer_with_rates(
    wanted: OptimizerLike | None, network: nn.Module, loss: object, rates: Mapping[str, float]
) -> Optimizer:
    """The optimizer, with a group of parameters for each pattern that has a learning rate."""
    if not rates:
        return optimizer_of(wanted, network, loss)
    if isinstance(wanted, Optimizer) or wanted is None:
        raise UsageError(
            "expected an optimizer by name or as a function of the parameters for rates=, got "
            f"{type(wanted).__name__}: give it groups of parameters with their own lr instead."
        )
    taken: set[int] = set()
    groups: list[dict[str, Any]] = []
    for pattern, rate in rates.items():
        found = [p for p in named(network, pattern).values() if p.requires_grad]
        own = [p for p in found if id(p) not in taken]  # the first pattern that matches decides
        taken |= {*map(id, own)}
        if own:
            groups.append({"params": own, "lr": rate, "name": pattern})
    owners = [network, *([loss] if isinstance(loss, nn.Module) else [])]
    rest = [p for m in owners for p in m.parameters() if p.requires_grad and id(p) not in taken]
    if rest:
        groups.append({"params": rest, "name": "others"})
    return optimizer_of(_over(wanted, groups, network), network, loss)


def _over(wanted: Any, groups: list[dict[str, Any]], network: nn.Module) -> Any:
    """The same optimizer, made of these groups instead of the parameters."""
    kind: Any = type(optimizer_of(wanted, network)) if isinstance(wanted, str) else wanted
    return lambda _parameters: kind(groups)


def named(network: nn.Module, pattern: str) -> dict[str, nn.Parameter]:
    """The parameters of the layers that match, or whose own names do; at least one."""
    if not isinstance(pattern, str):
        raise UsageError(f"expected patterns of layers' names as text, got {pattern!r}.")
    found = {
        name: parameter
        for name, parameter in network.named_parameters()
        if any(fnmatchcase(part, pattern) for part in _and_above(name))
    }
    if not found:
        layers = [name for name, _ in network.named_modules() if name]
        layers = layers or [name for name, _ in network.named_parameters()]
        raise UsageError(
            f"expected a pattern that matches layers, got {pattern!r}: "
            f"{did_you_mean(pattern, layers)}"
        )
    return found


def _and_above(name: str) -> list[str]:
    """A name and those of the layers around it: "a.b.weight", "a.b", "a"."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def _others(network: nn.Module, chosen: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    known = {*map(id, chosen)}
    return [parameter for parameter in network.parameters() if id(parameter) not in known]
