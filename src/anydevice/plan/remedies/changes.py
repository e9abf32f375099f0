"""Changes to a trial that need less memory: each trains a copy of it on the current GPUs."""

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from anydevice.devices.move import move
from anydevice.devices.place import place
from anydevice.errors import UsageError
from anydevice.train.copies import new_optimizer, optimizer_over
from anydevice.train.data.rows import parts_of
from anydevice.train.loop.fitting import Fitting
from anydevice.train.loop.loop import gradients, train_epoch
from anydevice.train.trial import Trial

HERE = torch.device("cuda", 0)  # on a hollow GPU, a copy takes no memory
ENOUGH = 1 << 20  # steps; the plan ends the run long before


def own_gpu() -> torch.device:
    """The GPU of this rank."""
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def train(trial: Trial, parts: int = 1, share: int = 1) -> None:
    """Takes steps until the plan ends the run: batches in `parts`, or a `share`-th of each."""
    job = trial.job
    job.parts, job.optimizer = parts, trial.optimizer
    job.gradients = Fitting(trial.device).gradients if parts > 1 else gradients
    batches = trial.sets.named("train")
    with trial.settings():
        for _ in range(ENOUGH):
            trial.metrics.reset(trial.device)
            before = job.batches
            train_epoch(job, _shares(batches, share))
            if job.batches == before:
                raise UsageError("expected a trial with batches to train on, got none.")


def _shares(batches: Iterable[Any], share: int) -> Iterator[Any]:
    return iter(batches) if share == 1 else (parts_of(batch, share)[0] for batch in batches)


# ---- the changes ----


def as_it_is(trial: Trial) -> None:
    """Nothing changed."""
    train(trial.copied(HERE))


def in_parts(trial: Trial, parts: int) -> None:
    """Gradient accumulation: each batch in so many parts."""
    train(trial.copied(HERE), parts)


def in_precision(trial: Trial, precision: str) -> None:
    """Mixed precision, by autocast."""
    train(trial.copied(HERE, precision))


def with_optimizer(trial: Trial, options: dict[str, bool]) -> None:
    """An optimizer built with other options, such as foreach=False."""
    other = trial.copied(HERE)
    other.optimizer = _rebuilt(other.optimizer, options)
    train(other)


def checkpointed(trial: Trial, every: int, precision: str | None = None, parts: int = 1) -> None:
    """Activation checkpointing of each block, or of every second one."""
    other = trial.copied(HERE, precision)
    checkpoint_blocks(other.network, every)
    train(other, parts)


def sharded(trial: Trial, cards: int) -> None:
    """FSDP2: each GPU keeps its share of the weights and trains on its share of the batch."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=cards)
    try:
        mesh = init_device_mesh("cuda", (cards,))
        other = trial.copied(HERE)
        names = {id(weight): name for name, weight in other.network.named_parameters()}
        half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(other.precision.name)
        policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=half and torch.float32)
        for block in blocks_of(other.network)[1]:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(other.network, mesh=mesh, mp_policy=policy)
        shards = dict(other.network.named_parameters())
        if isinstance(other.recipe.optimizer, Optimizer):
            known = {number: shards[name] for number, name in names.items()}
            other.optimizer = optimizer_over(known, other.recipe.optimizer)
        train(other, share=cards)
    finally:
        dist.destroy_process_group()


def placed(trial: Trial, cards: int, activations: Mapping[str, int] | None = None) -> None:
    """Layers spread over several GPUs in order; the loss is computed where the batch is."""
    other = trial.copied(HERE)
    place(other.network, placement_of(other.network, cards, activations or {}))
    first = torch.device("cuda", 0)
    other.network.register_forward_hook(lambda module, inputs, output: move(output, first))
    train(other)


# ---- blocks ----


def blocks_of(network: nn.Module) -> tuple[str, list[nn.Module]]:
    """The network's repeated blocks, and the name of the module that holds them."""
    rows = {
        name: list(module.children())
        for name, module in network.named_modules()
        if isinstance(module, (nn.Sequential, nn.ModuleList))
    }
    repeated = {name: _repeated(row) for name, row in rows.items()}
    weights = {name: sum(map(_weights, row)) for name, row in repeated.items() if len(row) > 1}
    if not weights:
        return "", []
    name = max(weights, key=lambda name: weights[name])
    return name, repeated[name]


def _repeated(row: list[nn.Module]) -> list[nn.Module]:
    """The row's children of the most common class that has submodules."""
    kinds = [type(module) for module in row if next(module.children(), None) is not None]
    kind = max(kinds, key=kinds.count, default=None)
    return [module for module in row if type(module) is kind]


def checkpoint_blocks(network: nn.Module, every: int = 1) -> None:
    """Checkpoints each block, or a plain row of n layers in √n segments."""
    _, blocks = blocks_of(network)
    for block in blocks[::every]:
        forward = block.forward
        block.forward = partial(checkpoint, forward, use_reentrant=False)
    if not blocks:
        row = longest_row(network)
        if row is None:
            raise UsageError("expected blocks to checkpoint, got a network without any.")
        layers = _with_their_changes(row)
        segments = max(2, math.isqrt(len(layers)))
        row.forward = partial(  # type: ignore[method-assign]
            checkpoint_sequential, layers, segments, use_reentrant=False
        )


def _with_their_changes(row: nn.Sequential) -> list[nn.Module]:
    """Joins each layer with in-place layers after it: no segment may change its own input."""
    together: list[list[nn.Module]] = []
    for layer in row:
        if together and getattr(layer, "inplace", False):
            together[-1].append(layer)
        else:
            together.append([layer])
    return [nn.Sequential(*layers) for layers in together]


def longest_row(network: nn.Module) -> nn.Sequential | None:
    """The longest plain row of layers."""
    rows = [m for m in network.modules() if isinstance(m, nn.Sequential) and len(m) >= 4]
    return max(rows, key=len, default=None)


def placement_of(network: nn.Module, cards: int, activations: Mapping[str, int]) -> dict[str, str]:
    """Where to put a row of layers: in order, with about as much memory on each GPU.

    Each weight takes four numbers: its value, its gradient, and two of Adam's.
    """
    prefix, row = _row_of(network)
    names = [f"{prefix}.{index}".lstrip(".") for index in range(len(row))]
    held = [
        16 * _weights(layer) + sum(size for at, size in activations.items() if _within(at, name))
        for name, layer in zip(names, row, strict=True)
    ]
    total, before, devices = sum(held) or 1, 0, {"*": "cuda:0"}
    for name, size in zip(names, held, strict=True):
        middle = before + size / 2
        devices[name] = f"cuda:{min(cards - 1, int(middle * cards / total))}"
        before += size
    if len(set(devices.values())) < cards:
        raise UsageError(
            f"expected layers to spread over {cards} GPUs, got one that holds most of the memory."
        )
    return devices


def _within(path: str, name: str) -> bool:
    return path == name or path.startswith(f"{name}.")


def _row_of(network: nn.Module) -> tuple[str, list[nn.Module]]:
    rows = {
        name: list(module)
        for name, module in network.named_modules()
        if isinstance(module, (nn.Sequential, nn.ModuleList)) and len(module) > 1
    }
    if not rows:
        raise UsageError("expected layers in a row to place, got a network without any.")
    name = max(rows, key=lambda name: sum(map(_weights, rows[name])))
    return name, rows[name]


def _weights(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _rebuilt(optimizer: Optimizer, options: dict[str, bool]) -> Optimizer:
    if missing := options.keys() - optimizer.defaults.keys():
        kind = type(optimizer).__name__
        raise UsageError(f"expected an optimizer with {', '.join(missing)}, got {kind}.")
    own = {"foreach": None, "fused": None} & optimizer.defaults.keys()
    changed = {**dict.fromkeys(own), **options}
    groups = [{**group, **changed} for group in optimizer.param_groups]
    return new_optimizer(type(optimizer), groups, {**optimizer.defaults, **changed})
