"""What an op of torch.distributed asks of the network: which ranks, how many bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from anydevice.plan.time.work import Exchange

# Ops of c10d and _c10d_functional, by what NCCL calls them.
KINDS = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce",
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "broadcast_": "broadcast",
    "broadcast": "broadcast",
    "reduce_": "reduce",
    "gather_": "gather",
    "scatter_": "scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "all_to_all_single": "all_to_all",
    "send": "send",
    "isend": "send",
    "recv_": "recv",
    "irecv": "recv",
}
PEER = {"send": "dst", "recv": "src"}
# What each GPU's link carries, as a share of the whole; NCCL's rings.
CARRIED = {"all_reduce": 2.0}


def exchange_of(op: Any, args: Any, kwargs: Any, result: Any) -> Exchange | None:
    """The collective that this op is; None if it is none, or not among GPUs."""
    kind = KINDS.get(op.__name__.partition(".")[0])
    first = list(_tensors_in(args[:1]))
    others = list(_tensors_in(args[1:2])) or list(_tensors_in((result,)))
    device = next((t.device.index for t in (*first, *others) if t.is_cuda), None)
    if kind is None or device is None:
        return None
    named = {a.name: v for a, v in zip(op._schema.arguments, args, strict=False)} | kwargs
    group = _group(named)
    size = max(_bytes(first), _bytes(others))
    peer = -1 if group is None else _peer(kind, named, group)
    return Exchange(
        name=kind,
        device=device,
        bytes=CARRIED.get(kind, 1.0) * size,
        ranks=() if group is None else tuple(torch.distributed.get_process_group_ranks(group)),
        size=size,
        group="" if group is None else group.group_name,
        peer=peer,
        waits=named.get("async_op") is False,
    )


def _group(named: dict[str, Any]) -> Any:
    """The process group that a collective names."""
    c10d: Any = torch.distributed.distributed_c10d
    given = named.get("process_group", named.get("group_name"))
    if isinstance(given, torch.ScriptObject):
        given = c10d.ProcessGroup.unbox(given)
    elif isinstance(given, str):
        given = c10d._resolve_process_group(given)
    try:
        torch.distributed.get_process_group_ranks(given)
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError):
        return None  # made without torch.distributed
    return given


def _peer(kind: str, named: dict[str, Any], group: Any) -> int:
    if kind not in PEER:
        return -1
    return torch.distributed.get_global_rank(group, int(named[PEER[kind]]))


def _tensors_in(values: Iterable[Any]) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors_in(value)


def _bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
