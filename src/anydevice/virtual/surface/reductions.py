"""torch.cuda.nccl: sums and copies between the GPUs of one process, without NCCL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce as fold
from typing import TYPE_CHECKING, Any, NoReturn

import torch

if TYPE_CHECKING:
    from torch import Tensor

# ncclRedOp_t
REDUCTIONS = ("add", "mul", "maximum", "minimum")


def names() -> dict[str, Any]:
    """What torch._C calls them."""
    return {
        "_nccl_unique_id": _refuse,
        "_nccl_init_rank": _refuse,
        "_nccl_all_reduce": all_reduce,
        "_nccl_reduce": reduce,
        "_nccl_broadcast": broadcast,
        "_nccl_all_gather": all_gather,
        "_nccl_reduce_scatter": reduce_scatter,
    }


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """Where torch asks whether NCCL is worth it, it is not: reduce_add() then adds by itself."""
    import torch.cuda.nccl

    yield torch.cuda.nccl, "is_available", lambda tensors: False


def all_reduce(inputs: Sequence[Tensor], outputs: Sequence[Tensor], op: int, *_: object) -> None:
    """The reduction of the inputs, in each output."""
    total = _reduced(inputs, op)
    for output in outputs:
        output.copy_(total)


def reduce(inputs: Sequence[Tensor], output: Tensor, root: int, op: int, *_: object) -> None:
    """The reduction of the inputs, in the one output."""
    output.copy_(_reduced(inputs, op))


def broadcast(inputs: Sequence[Tensor], root: int, *_: object) -> None:
    """One of the inputs, in all others."""
    for tensor in inputs:
        if tensor is not inputs[root]:
            tensor.copy_(inputs[root])


def all_gather(inputs: Sequence[Tensor], outputs: Sequence[Tensor], *_: object) -> None:
    """All inputs one after the other, in each output."""
    for output in outputs:
        parts = [tensor.to(output.device).flatten() for tensor in inputs]
        output.copy_(torch.cat(parts).view_as(output))


def reduce_scatter(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], op: int, *_: object
) -> None:
    """The reduction of the inputs, a part of it in each output."""
    parts = _reduced(inputs, op).flatten().chunk(len(outputs))
    for output, part in zip(outputs, parts, strict=True):
        output.copy_(part.view_as(output))


def _reduced(inputs: Sequence[Tensor], op: int) -> Tensor:
    there = inputs[0].device
    return fold(getattr(torch, REDUCTIONS[op]), (tensor.to(there) for tensor in inputs))


def _refuse(*_: object) -> NoReturn:
    raise NotImplementedError(
        "NCCL's own communicators need real GPUs: use torch.distributed, whose backend 'nccl' runs "
        "on virtual ones."
    )
