"""What a collective makes of values that are known: every rank has the same ones as this rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from anydevice.plan.time.collectives import exchange_of

Of = Callable[[Tensor], Tensor | None]
SAME = ("wait_tensor", "_wrap_tensor_autograd")


def written(op: Any, args: Any, result: Any) -> list[Tensor]:
    """The tensors that a collective wrote to."""
    return _tensors(args[0] if op.namespace == "c10d" else result)


def after(op: Any, args: Any, kwargs: Any, result: Any, of: Of) -> list[tuple[Tensor, Tensor]]:
    """The tensors that a collective wrote to and whose values are known, with these.

    Args:
        op: The collective.
        args: Its arguments.
        kwargs: Its arguments by name.
        result: What it returned.
        of: The values of a tensor, None if they are not known.
    """
    in_place = op.namespace == "c10d" and len(args) > 1 and _tensors(args[1])
    targets, sources = written(op, args, result), in_place or _tensors(args[0])
    if len(sources) == 1:  # gathered into a tensor for each rank
        sources = sources * len(targets)
    pairs = list(zip(targets, sources, strict=False))
    if op.__name__.partition(".")[0] in SAME:
        return [(to, values) for to, source in pairs if (values := of(source)) is not None]
    exchange = exchange_of(op, args, kwargs, result)
    if exchange is None or not exchange.ranks or exchange.peer >= 0:
        return []
    here = exchange.ranks.index(torch.distributed.get_rank())
    found = []
    for to, source in pairs:
        values = of(source)
        if values is None:
            continue
        made = _made(exchange.name, values, to.numel(), len(exchange.ranks), here)
        if made is not None and made.numel() == to.numel():
            found.append((to, made.reshape(to.shape)))
    return found


def _made(kind: str, values: Tensor, size: int, ranks: int, here: int) -> Tensor | None:
    if kind == "all_to_all" and values.numel() % ranks == 0:
        return values.reshape(ranks, -1)[here].repeat(ranks)
    if kind == "all_gather":
        return values.reshape(-1).repeat(max(1, size // max(1, values.numel())))
    return values if kind == "broadcast" else None


def _tensors(given: Any) -> list[Tensor]:
    return [each for each in tree_leaves(given) if isinstance(each, Tensor)]
