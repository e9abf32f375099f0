"""Copies between GPUs: what torch.nn.parallel's DataParallel is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor


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


def broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
    """A copy on each device; on the first, the tensor itself if it is there already."""
    if not devices:
        raise RuntimeError("Expected at least one device to broadcast to")
    if tensor.is_cuda and tensor.get_device() != devices[0]:
        raise RuntimeError("device of broadcasted tensor must appear as the first on devices list")
    copies = [tensor] if tensor.is_cuda else []
    for device in devices[len(copies) :]:
        copies.append(tensor.to(_cuda(device), non_blocking=True, copy=True))
    return copies


def broadcast_out(tensor: Tensor, outputs: Sequence[Tensor]) -> list[Tensor]:
    """The tensor copied into each output."""
    for i, output in enumerate(outputs):
        if not output.is_cuda:
            raise RuntimeError(
                "Expected all output tensors to be CUDA tensors, but output tensor at index "
                f"{i} has device '{output.device}'"
            )
        if output.shape != tensor.shape:
            raise RuntimeError(
                "Expected all output tensors to have same shape as the source tensor "
                f"{list(tensor.shape)}, but output tensor at index {i} has shape "
                f"{list(output.shape)}"
            )
    return [output.copy_(tensor, non_blocking=True) for output in outputs]


def broadcast_coalesced(
    tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[Tensor]]:
    """For each device the tensors there, copied in buffers of about this many bytes."""
    if any(not tensor.is_cuda or tensor.get_device() != devices[0] for tensor in tensors):
        raise RuntimeError("all tensors must be on devices[0]")
    results: list[list[Tensor]] = [list(tensors), *([] for _ in devices[1:])]
    utils: Any = torch._utils
    for chunk in utils._take_tensors(tensors, buffer_size):
        if chunk[0].is_sparse:
            for result, device in zip(results[1:], devices[1:], strict=True):
                result.extend(tensor.to(_cuda(device), non_blocking=True) for tensor in chunk)
            continue
        flat = broadcast(utils._flatten_dense_tensors(chunk), devices)
        for result, copy in zip(results[1:], flat[1:], strict=True):
            # `.data`: each has its own version counter, though they are parts of one buffer.
            result.extend(part.data for part in utils._unflatten_dense_tensors(copy, chunk))
    for i, result in enumerate(results[1:], 1):
        results[i] = list(utils._reorder_tensors_as(result, tensors))
    return results


def scatter(
    tensor: Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None,
    dim: int,
    streams: Sequence[Any] | None,
) -> list[Tensor]:
    """Chunks of the tensor along a dimension, one for each device."""
    if not devices:
        raise RuntimeError("Expected at least one device to scatter to")
    if chunk_sizes is not None:
        _check_chunks(tensor, devices, chunk_sizes, dim)
    chunks = list(
        tensor.chunk(len(devices), dim)
        if chunk_sizes is None
        else torch.split(tensor, list(chunk_sizes), dim)
    )
    for i, device in enumerate(devices[: len(chunks)]):
        stream = streams[i] if streams is not None else None
        if stream is not None and stream.device_index != device:
            raise RuntimeError(
                f"Expected the device associated with the stream at index {i} (was "
                f"{stream.device_index}) to match the device supplied at that index (expected "
                f"{device})"
            )
        with torch.cuda.stream(stream):
            chunks[i] = chunks[i].to(_cuda(device), non_blocking=True)
    return chunks


def scatter_out(
    tensor: Tensor, outputs: Sequence[Tensor], dim: int, streams: Sequence[Any] | None
) -> list[Tensor]:
    """Chunks of the tensor, as large as the outputs, copied into them."""
    if not outputs:
        raise RuntimeError("Expected at least one output tensor to scatter to")
    dim = dim % tensor.dim()
    total = 0
    for i, output in enumerate(outputs):
        if not output.is_cuda:
            raise RuntimeError(
                "Expected all output tensors to be CUDA tensors, but output tensor at index "
                f"{i} has device '{output.device}'"
            )
        alike = output.dim() == tensor.dim() and all(
            output.shape[d] == tensor.shape[d] for d in range(tensor.dim()) if d != dim
        )
        if not alike:
            raise RuntimeError(
                f"Output tensor at index {i} has incorrect shape: {list(output.shape)}. Expected "
                f"same shape except for scatter dim {dim} as the source tensor: "
                f"{list(tensor.shape)}"
            )
        total += output.size(dim)
    if total != tensor.size(dim):
        raise RuntimeError(
            f"Total size for output tensors along scatter dim {dim} does not match the source "
            f"tensor size at dim {dim}. Expected {tensor.size(dim)}, but got total size {total}"
        )
    chunks = torch.split(tensor, [output.size(dim) for output in outputs], dim)
    return [
        output.copy_(chunk, non_blocking=True)
        for output, chunk in zip(outputs, chunks, strict=True)
    ]


def gather(tensors: Sequence[Tensor], dim: int, destination: int | None) -> Tensor:
    """The tensors side by side on one device; -1 is the host."""
    dim = _check_gathered(tensors, dim)
    shape = list(tensors[0].shape)
    shape[dim] = sum(tensor.size(dim) for tensor in tensors)
    there = torch.device("cpu") if destination == -1 else _cuda(destination)
    last = all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in tensors) and (
        len(shape) == 4 and not tensors[0].is_contiguous()
    )
    layout = torch.channels_last if last else torch.contiguous_format
    result = torch.empty(shape, dtype=tensors[0].dtype, device=there, memory_format=layout)
    return _fill(result, tensors, dim)


def gather_out(tensors: Sequence[Tensor], output: Tensor, dim: int) -> Tensor:
    """The tensors side by side in the output."""
    dim = _check_gathered(tensors, dim)
    expected = list(tensors[0].shape)
    expected[dim] = sum(tensor.size(dim) for tensor in tensors)
    if list(output.shape) != expected:
        raise RuntimeError(
            f"Expected out tensor to have shape {expected}, but got {list(output.shape)}"
        )
    return _fill(output, tensors, dim)


def _fill(result: Tensor, tensors: Sequence[Tensor], dim: int) -> Tensor:
    start = 0
    for tensor in tensors:
        result.narrow(dim, start, tensor.size(dim)).copy_(tensor, non_blocking=True)
        start += tensor.size(dim)
    return result


def _check_gathered(tensors: Sequence[Tensor], dim: int) -> int:
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    first = tensors[0]
    dim = dim % first.dim() if first.dim() else dim
    for i, tensor in enumerate(tensors):
        if not tensor.is_cuda:
            raise RuntimeError(
                "Expected all input tensors to be CUDA tensors, but tensor at index "
                f"{i} has device '{tensor.device}'"
            )
        if tensor.dim() != first.dim():
            raise RuntimeError(
                "Expected all input tensors to have the same number of dimensions, but tensor at "
                f"index {i} has {tensor.dim()} dimensions, (expected {first.dim()})"
            )
        expected = list(first.shape)
        expected[dim] = tensor.size(dim)
        if list(tensor.shape) != expected:
            raise RuntimeError(
                f"Input tensor at index {i} has invalid shape {list(tensor.shape)}, but expected "
                f"{expected}"
            )
    return dim


def _check_chunks(
    tensor: Tensor, devices: Sequence[int], chunk_sizes: Sequence[int], dim: int
) -> None:
    if len(chunk_sizes) != len(devices):
        raise RuntimeError(
            "Expected devices and chunk_sizes to be of same length, but got len(devices) = "
            f"{len(devices)} and len(chunk_sizes) = {len(chunk_sizes)}"
        )
    if sum(chunk_sizes) != tensor.size(dim):
        raise RuntimeError(
            "given chunk sizes don't sum up to the tensor's size (sum(chunk_sizes) == "
            f"{sum(chunk_sizes)}, but expected {tensor.size(dim)})"
        )
    for size in chunk_sizes:
        if size <= 0:
            raise RuntimeError("Chunk size must be positive")


def _cuda(device: int | None) -> torch.device:
    return torch.device("cuda", torch.cuda.current_device() if device is None else device)
