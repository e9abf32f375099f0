"""One step of several ranks, each with a shard of the network: FSDP2's fully_shard."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.optim import Optimizer

from anydevice.errors import UsageError
from anydevice.train.distributed.strategy import Strategy
from anydevice.train.loop.forward import Forward
from anydevice.train.ranks import Ranks

LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
STEPS = ("training_step", "validation_step")


class Sharded(Strategy):
    """FSDP2: every rank has a shard of each parameter, and the whole of a block while it runs."""

    is_sharded = True

    def __init__(
        self, ranks: Ranks, network: Any, loss: object, forward: Forward, sums: bool
    ) -> None:
        super().__init__(ranks, network, forward, sums)
        self.parts = [part for part in (network, loss) if isinstance(part, FSDPModule)]

    def averaging(self, last: bool) -> AbstractContextManager[Any]:  # noqa: D102
        for part in self.parts:
            part.set_requires_gradient_sync(last)
        return nullcontext()


def shard(network: nn.Module, loss: object, optimizer: object, ranks: Ranks) -> None:
    """Shards the parameters, block by block; an optimizer over them gets the shards."""
    if isinstance(network, FSDPModule):
        return
    modules = [network, *([loss] if isinstance(loss, nn.Module) else [])]
    for module in modules:
        ranks.same_state(module)
    before = {id(p): name for name, p in _named(modules)}
    mesh = init_device_mesh(ranks.device.type, (ranks.world,))
    for module in modules:
        for block in _blocks(module):
            fully_shard(block, mesh=mesh)
        if any(True for _ in module.parameters()):
            fully_shard(module, mesh=mesh)
    for step in STEPS:
        if hasattr(network, step):
            register_fsdp_forward_method(network, step)
    if isinstance(optimizer, Optimizer):
        _take_shards(optimizer, before, dict(_named(modules)))


def _take_shards(
    optimizer: Optimizer, before: dict[int, str], shards: dict[str, nn.Parameter]
) -> None:
    """Has the optimizer train shards; `before` has their names by the ids of the parameters."""
    if optimizer.state:
        raise UsageError(
            'expected a new optimizer for strategy="fsdp", got one that has made steps: give a '
            "name or a function of the parameters."
        )
    for group in optimizer.param_groups:
        group["params"] = [shards[before[id(p)]] if id(p) in before else p for p in group["params"]]


def _blocks(module: nn.Module) -> Iterable[nn.Module]:
    """What is gathered at a time: the members of the outermost lists of modules."""
    if isinstance(module, LISTS):
        yield from (part for part in module.children() if any(True for _ in part.parameters()))
    else:
        for part in module.children():
            yield from _blocks(part)


def _named(modules: list[nn.Module]) -> Iterable[tuple[str, nn.Parameter]]:
    for place, module in enumerate(modules):
        for name, parameter in module.named_parameters():
            yield f"{place}.{name}", parameter
