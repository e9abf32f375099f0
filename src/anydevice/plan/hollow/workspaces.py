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

aten = torch.ops.aten
MIB = 1 << 20

CUBLAS_SOURCE = "PyTorch's default size, once for the forward and once for the backward thread"
CUDNN_SOURCE = (
    "assumed: tensor cores take NHWC, so a convolution of NCHW tensors works on copies of its "
    "operands; cuDNN may choose differently"
)

PRODUCTS = {
    *(aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.addbmm, aten.mv, aten.addmv, aten.dot),
    *(aten.vdot, aten._addmm_activation, aten._scaled_mm, aten.linear_backward),
}
GROUPS = {
    aten.convolution: 8,
    aten.convolution_backward: 9,
}  # position of the argument


def cublas_bytes(card: Card) -> int:
    """One cuBLAS workspace of PyTorch's size: 8.125 MiB, from Hopper on 32 MiB."""
    asked = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if asked:
        return sum(int(size) * int(count) for size, count in asked) << 10
    return 32 * MIB if card.capability >= (9, 0) else 8_519_680


def cudnn_bytes(card: Card, op: Any, arguments: tuple[Any, ...], result: Any) -> int:
    """The workspace of one convolution; 0 if it can use the tensors' layout directly."""
    if arguments[GROUPS[op]] > 1:  # PyTorch has its own kernels for these
        return 0
    operands = [*arguments[:3], result if op is aten.convolution else None]
    images = [t for t in operands if isinstance(t, Tensor) and t.dim() >= 4]
    if not images or not _on_tensor_cores(card, images[0].dtype):
        return 0
    return 0 if any(map(_channels_last, images)) else sum(t.nbytes for t in images)


def _on_tensor_cores(card: Card, dtype: torch.dtype) -> bool:
    if dtype == torch.float32:
        return card.capability >= (8, 0) and torch.backends.cudnn.allow_tf32
    least = {torch.float16: (7, 0), torch.bfloat16: (8, 0)}.get(dtype)
    return least is not None and card.capability >= least


def _channels_last(tensor: Tensor) -> bool:
    layout = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    return tensor.is_contiguous(memory_format=layout) and not tensor.is_contiguous()
