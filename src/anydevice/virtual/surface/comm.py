"""Copies between GPUs: what torch.nn.parallel's DataParallel is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch


def names() -> dict[str, Any]:
    """What torch._C calls them."""
    return {
        "_broadcast": broadcast,
        "_broadcast_out": broadcast_out,
        "_broadcast_coalesced": broadcast_coalesced,
        "_scatter": scatter,
        "_scatter_out": scatter_out,
        "_gather": gather,
        "_gather_out": gather_out,
    }


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """NCCL, which a CUDA build has, reaches for real GPUs; without it sums are made by adding."""
    import torch.cuda.nccl

    yield torch.cuda.nccl, "is_available", lambda tensors: False


def broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    """The tensor on each device; where it is already, itself."""
    return [tensor.to(torch.device("cuda", device)) for device in devices]


def broadcast_out(tensor: torch.Tensor, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensor copied into each output."""
    return [output.copy_(tensor) for output in outputs]


def broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[torch.Tensor]]:
    """For each device, the tensors there."""
    copies = [[tensor.to(torch.device("cuda", device)) for tensor in tensors] for device in devices]
    return [list(tensors), *copies[1:]]


def scatter(
    tensor: torch.Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None,
    dim: int,
    streams: Sequence[Any] | None,
) -> list[torch.Tensor]:
    """Chunks of the tensor along a dimension, one for each device."""
    chunks = (
        torch.split(tensor, list(chunk_sizes), dim)
        if chunk_sizes
        else tensor.chunk(len(devices), dim)
    )
    return [
        chunk.to(torch.device("cuda", device))
        for chunk, device in zip(chunks, devices, strict=False)
    ]


def scatter_out(
    tensor: torch.Tensor, outputs: Sequence[torch.Tensor], dim: int, streams: Sequence[Any] | None
) -> list[torch.Tensor]:
    """Chunks of the tensor, as large as the outputs, copied into them."""
    chunks = torch.split(tensor, [output.size(dim) for output in outputs], dim)
    return [output.copy_(chunk) for output, chunk in zip(outputs, chunks, strict=True)]


def gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None) -> torch.Tensor:
    """The tensors side by side on one device; -1 is the host."""
    index = torch.cuda.current_device() if destination is None else destination
    there = torch.device("cpu") if index == -1 else torch.device("cuda", index)
    return torch.cat([tensor.to(there) for tensor in tensors], dim)


def gather_out(tensors: Sequence[torch.Tensor], output: torch.Tensor, dim: int) -> torch.Tensor:
    """The tensors side by side in the output."""
    return output.copy_(torch.cat([tensor.to(output.device) for tensor in tensors], dim))
