"""Every op that PyTorch has a CUDA kernel for has one here: the CPU's, one of ours, or a reason."""

import re

import pytest
import torch

from anydevice.virtual import build, ops

TEXT = re.compile(r'"(\w+(?:\.\w+)?)"')

CUTLASS = "CUTLASS reads its weights in an order of the tensor cores that PyTorch does not describe"
PRUNING = "prunes in CUTLASS's own tiles while training; the dense masks are not PyTorch's to know"
FP8 = "flash attention 3 on 8-bit floats, which only Hopper has and PyTorch enables on request"
TRITON = "raises on a card as well, unless Triton has replaced it"
NEWER = "new in torch 2.14 or 2.15, and not written yet"
NESTED = "strided nested tensors take the math kernel, which needs no fused one"

OMITTED = {
    "CUDA _mixed_dtypes_linear": CUTLASS,
    "CUDA _sparse_semi_structured_tile": PRUNING,
    "CUDA _sparse_semi_structured_apply": PRUNING,
    "CUDA _sparse_semi_structured_apply_dense": PRUNING,
    "CUDA _scaled_dot_product_flash_attention.quantized": FP8,
    "CUDA _flash_attention_forward.quantized": FP8,
    "CUDA _triton_scaled_dot_attention": TRITON,
    "CUDA _triton_multi_head_attention": TRITON,
    "CUDA _cudnn_attention_forward_no_dropout_inplace": NEWER,
    "CUDA _scaled_addmm.out": NEWER,
    "CUDA _scaled_grouped_mm_v2.out": NEWER,
    "NestedTensorCUDA _scaled_dot_product_flash_attention": NESTED,
    "NestedTensorCUDA _scaled_dot_product_flash_attention_backward": NESTED,
    "NestedTensorCUDA _scaled_dot_product_efficient_attention": NESTED,
    "NestedTensorCUDA _scaled_dot_product_cudnn_attention": NESTED,
    "NestedTensorCUDA _scaled_dot_product_cudnn_attention_backward": NESTED,
    "SparseCUDA pow_.Scalar": "declared by inheritance only: a card has no such kernel either",
}


def written() -> set[str]:
    """`layout op` of every kernel that native/ registers by name."""
    found = set()
    for source in build.NATIVE.rglob("*.cpp"):
        for block in source.read_text("utf-8").split("ANYDEVICE_IMPL(aten, ")[1:]:
            layout, _, body = block.partition(",")
            found |= {f"{layout} {op}" for op in TEXT.findall(body.partition("\n}\n")[0])}
    return found


def has_cpu_kernel(layout: str, op: str) -> bool:
    key = layout.replace("CUDA", "CPU")
    return torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"aten::{op}", key)


@pytest.fixture(scope="module")
def without_cpu_kernel() -> set[str]:
    listed = [line for line in ops.op_list().splitlines() if not line.startswith("!")]
    named = {tuple(line.split()[:2]) for line in listed}
    return {f"{layout} {op}" for layout, op in named if not has_cpu_kernel(layout, op)}


def test_every_op_has_a_kernel_or_a_reason(without_cpu_kernel):
    assert len(without_cpu_kernel) > 90
    assert without_cpu_kernel - written() - OMITTED.keys() == set()


def test_no_reason_is_given_for_what_is_there(without_cpu_kernel):
    assert OMITTED.keys() & written() == set()
    newer = {name for name, reason in OMITTED.items() if reason == NEWER}
    assert OMITTED.keys() - without_cpu_kernel - newer == set()


def test_an_op_of_another_maker_says_what_it_says_on_a_card(virtual_gpu):
    x = torch.ones(1, 1, 3, 3, device="cuda")
    with pytest.raises(RuntimeError, match="miopen_convolution: ATen not compiled with MIOpen"):
        torch.miopen_convolution(x, x, None, [0, 0], [1, 1], [1, 1], 1, False, False)
