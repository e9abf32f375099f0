"""Which module is running, and which one each node of autograd's graph comes from."""

from __future__ import annotations

from bisect import bisect

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from anydevice.plan.hollow.training import trained

# Note [Whose a node is]
# In the backward pass no module runs, unless checkpointing runs it again. What is computed there
# belongs to the module whose forward pass made the current node of autograd's graph. Nodes are
# numbered in the order in which they are made, so it is enough to note the next number whenever a
# module is entered or left, and to look up a node's number among those.

OF_NO_OP = 2**62  # the numbers of nodes that are not an op's, but accumulate a gradient


class Modules:
    """The modules that a program has called, by name."""

    def __init__(self) -> None:
        self.path: list[str] = []  # of the running modules, the innermost last
        self.names: dict[int, str] = {}  # by id
        self.kinds: dict[str, str] = {}  # the class of each module, by name
        self.networks = 0  # outermost modules with parameters
        self._weights: dict[int, str] = {}  # the network of each parameter, by its id
        self._lazy: set[int] = set()  # modules whose parameters have no shape yet
        self._nodes: list[int] = [0]  # autograd's nodes from this number on …
        self._owners: list[str] = [""]  # … are of this module

    @property
    def innermost(self) -> str:
        """The name of the innermost module that runs; empty if none does."""
        return self.path[-1] if self.path else ""

    def enter(self, module: nn.Module) -> None:
        """A module begins to run."""
        self._go_to([*self.path, self.names[id(module)]])

    def leave(self, module: nn.Module) -> bool:
        """The module has run; returns whether its parameters have only now got their shapes."""
        self._go_to(self.path[:-1])
        was_lazy = id(module) in self._lazy
        self._lazy.discard(id(module))
        return was_lazy

    def _go_to(self, path: list[str]) -> None:
        self.path = path
        self._nodes.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
        self._owners.append(self.innermost)

    def learn(self, root: nn.Module) -> list[Tensor]:
        """The names of a module that is no part of one seen before; returns what it holds."""
        own = type(getattr(root, "_orig_mod", root)).__name__
        prefix = f"{own}." if self.networks else ""
        for path, part in root.named_modules():
            name = path.removeprefix("_orig_mod").removeprefix(".")  # of torch.compile
            full = self.names.setdefault(id(part), prefix + name if name else own)
            self.kinds[full] = type(part).__name__
            if any(is_lazy(p) for p in (*part._parameters.values(), *part._buffers.values())):
                self._lazy.add(id(part))
        held = weights(root)
        self._weights.update(dict.fromkeys(map(id, held), own))
        self.networks += bool(held)
        return held

    def owner_of_node(self) -> str:
        """The module that the current node of autograd's graph comes from."""
        node = torch._C._current_autograd_node()
        number = node._sequence_nr() if node is not None else 0
        if number >= OF_NO_OP:
            return ""
        return self._owners[bisect(self._nodes, number) - 1]

    def network_of(self, optimizer: Optimizer) -> str:
        """The network that an optimizer trains, or else the optimizer's class."""
        networks = (self._weights.get(id(p), "") for p in trained(optimizer))
        return next(filter(None, networks), type(optimizer).__name__)


def weights(module: nn.Module) -> list[Tensor]:
    """Its parameters and buffers, except those of lazy layers that have no shape yet."""
    return [w for w in (*module.parameters(), *module.buffers()) if not is_lazy(w)]
