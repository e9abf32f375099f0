"""What PyTorch's libraries use in addition to tensors: workspaces of cuBLAS and cuDNN.

None of it is measured on a GPU. cuBLAS's is PyTorch's own constant; cuDNN's are assumptions, and
are marked as such wherever they are shown.
"""

import os
import re
from typing import Any

import torch
from torch import Tensor

from anydevice.devices.catalogue import Card
from anydevice.plan.time.recorder import in_backward
from anydevice.virtual.compiled.launches import REPLAYED, inside

aten = torch.ops.aten
MIB = 1 << 20

CUBLAS_SOURCE = "PyTorch's default size, once for the forward and once for the backward thread"
CUDNN_SOURCE = (
    "assumed: tensor cores take NHWC, so a convolution of NCHW tensors works on copies of its "
    "operands; with cudnn.benchmark, a float32 one with at least 256 channels works on Winograd's "
    "tiles; cuDNN may choose differently"
)

PRODUCTS = {
    *(aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.addbmm, aten.mv, aten.addmv, aten.dot),
    *(aten.vdot, aten._addmm_activation, aten._scaled_mm, aten.linear_backward),
}
GROUPS = {
    aten.convolution: 8,
    aten.convolution_backward: 9,
}  # position of the argument

# Note [Losses that keep their elements]
# PyTorch makes the result of these losses as large as their inputs, and then resizes it to a single
# number: the memory stays taken as long as the loss is alive. The first two compute the elements in
# one more tensor. A hollow GPU has its shapes from meta functions, which know nothing of it.
KEEP_ELEMENTS = {aten.mse_loss: 2, aten.smooth_l1_loss: 2, aten.binary_cross_entropy: 1}

NEED_MEMORY = {
    packet.__name__ for packets in (PRODUCTS, GROUPS, KEEP_ELEMENTS) for packet in packets
}


class Workspaces:
    """Takes on a hollow GPU what CUDA's libraries would take there.

    Args:
        card: The GPU.
    """

    def __init__(self, card: Card) -> None:
        self.card = card
        self.taking = False  # whether the block that is taken now is a workspace
        self.refused = 0  # that a full GPU had no room for
        self.cudnn = 0  # the largest of a convolution
        self.emulated = False  # whether it computes in bf16 on a card that has none
        self._kept: dict[tuple[int, str, int], Tensor] = {}

    def after(self, op: Any, args: tuple[Any, ...], result: Any) -> Any:
        """The result of an op, once all memory is taken that the op needs on a card."""
        if op in PRODUCTS:
            self._take_cublas(result)
        elif op in GROUPS:
            self._take_cudnn(op, args, result)
        elif op in KEEP_ELEMENTS:
            return loss_as_on_cuda(op, args, result)
        return result

    def free(self) -> None:
        """Frees those that the libraries keep."""
        self._kept.clear()

    def _take_cublas(self, result: Any) -> None:
        """PyTorch keeps one for each stream of each thread; backward runs in a separate thread.

        Those of CUDA graphs are in the pool that the graphs share, where one follows another.
        """
        if not isinstance(result, Tensor) or not result.is_cuda:
            return
        device = result.get_device()
        half = result.dtype == torch.bfloat16
        self.emulated = self.emulated or (half and self.card.capability < (8, 0))
        thread = REPLAYED if inside() == REPLAYED else str(in_backward())
        key = (device, thread, torch._C._cuda_getCurrentStream(device)[0])
        if key not in self._kept:
            self._kept[key] = self._taken(cublas_bytes(self.card), result)

    def _take_cudnn(self, op: Any, args: tuple[Any, ...], result: Any) -> None:
        first = result if isinstance(result, Tensor) else args[0]
        if first.is_cuda and (size := cudnn_bytes(self.card, op, args, result)):
            try:
                self._taken(size, first)
            except torch.OutOfMemoryError:  # cuDNN then takes an algorithm that needs less
                self.refused += 1
                return
            self.cudnn = max(self.cudnn, size)

    def _taken(self, size: int, near: Tensor) -> Tensor:
        self.taking = True
        try:
            return torch.empty(size, dtype=torch.uint8, device=near.device)
        finally:
            self.taking = False


def loss_as_on_cuda(op: Any, arguments: tuple[Any, ...], result: Tensor) -> Tensor:
    """The result of such a loss, with the memory behind it."""
    if not result.is_cuda or result.dim():
        return result
    shape = torch.broadcast_shapes(*(t.shape for t in arguments[:2]))  # type: ignore[no-untyped-call]
    result.resize_(shape)
    if KEEP_ELEMENTS[op] > 1:
        result.new_empty(shape)
    return result.resize_(())


def cublas_bytes(card: Card) -> int:
    """One cuBLAS workspace of PyTorch's size: 8.125 MiB, from Hopper on 32 MiB."""
    asked = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if asked:
        return sum(int(size) * int(count) for size, count in asked) << 10
    return 32 * MIB if card.capability >= (9, 0) else 8_519_680


# Note [Winograd's workspace]
# With cudnn.benchmark, cuDNN takes the quickest algorithm. For 3 × 3 convolutions of stride 1 in
# float32 with many channels that is Winograd's F(4 × 4, 3 × 3) as separate products. It writes 36
# numbers for each tile of 4 × 4 pixels of the input and of the output, and 36 for each filter of
# 3 × 3. With few channels, one kernel does it all and writes nothing.
TILE, FILTERS = 36 / 16, 36 / 9
MANY_CHANNELS = 256


def cudnn_bytes(card: Card, op: Any, arguments: tuple[Any, ...], result: Any) -> int:
    """The workspace of one convolution; 0 if it can use the tensors' layout directly."""
    if arguments[GROUPS[op]] > 1:  # PyTorch has its own kernels for these
        return 0
    operands = [*arguments[:3], result if op is aten.convolution else None]
    images = [t for t in operands if isinstance(t, Tensor) and t.dim() >= 4]
    if not images:
        return 0
    if not _on_tensor_cores(card, images[0].dtype):
        return _winograd_bytes(op, arguments, images)
    return 0 if any(map(_channels_last, images)) else sum(t.nbytes for t in images)


def _winograd_bytes(op: Any, arguments: tuple[Any, ...], images: list[Tensor]) -> int:
    weight = arguments[1 if op is aten.convolution else 2]
    stride, dilation = (arguments[GROUPS[op] - 5], arguments[GROUPS[op] - 3])
    if (
        not torch.backends.cudnn.benchmark
        or images[0].dtype != torch.float32
        or weight.shape[2:] != (3, 3)
        or min(weight.shape[:2]) < MANY_CHANNELS
        or {*stride, *dilation} != {1}
    ):
        return 0
    pixels = sum(t.nbytes for t in images if t is not weight)
    return int(TILE * pixels + FILTERS * weight.nbytes)


def _on_tensor_cores(card: Card, dtype: torch.dtype) -> bool:
    if dtype == torch.float32:
        return card.capability >= (8, 0) and torch.backends.cudnn.allow_tf32
    least = {torch.float16: (7, 0), torch.bfloat16: (8, 0)}.get(dtype)
    return least is not None and card.capability >= least


def _channels_last(tensor: Tensor) -> bool:
    layout = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    return tensor.is_contiguous(memory_format=layout) and not tensor.is_contiguous()
