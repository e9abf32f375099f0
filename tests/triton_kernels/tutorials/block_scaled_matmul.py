"""Tutorial 10, products of numbers of 8 and 4 bits with a scale for each block: tl.dot_scaled."""

import torch
import triton
import triton.language as tl
from triton.tools.mxfp import MXFP4Tensor, MXScaleTensor

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.jit
def scaled_kernel(
    a_ptr, a_scale, b_ptr, b_scale, out_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    VECTOR: tl.constexpr, PACKED: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K // PACKED)
    blocks = tl.arange(0, BLOCK_K // VECTOR)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in tl.range(0, tl.cdiv(K, BLOCK_K), num_stages=2):
        at = k * (BLOCK_K // PACKED) + inner
        a = tl.load(a_ptr + rows[:, None] * (K // PACKED) + at[None, :])
        b = tl.load(b_ptr + columns[:, None] * (K // PACKED) + at[None, :])
        part = k * (BLOCK_K // VECTOR) + blocks
        scale_a = tl.load(a_scale + rows[:, None] * (K // VECTOR) + part[None, :])
        scale_b = tl.load(b_scale + columns[:, None] * (K // VECTOR) + part[None, :])
        total = tl.dot_scaled(a, scale_a, KIND, b.T, scale_b, KIND, total)
    tl.store(out_ptr + rows[:, None] * N + columns[None, :], total)


def check(kind: str, vector: int, M: int = 128, N: int = 128, K: int = 128) -> None:
    torch.manual_seed(42)
    if kind == "e4m3":
        numbers = [torch.randn(M, K, device=DEVICE).to(torch.float8_e4m3fn) for _ in "ab"]
        packed, plain = numbers, [each.float() for each in numbers]
    else:
        made = [MXFP4Tensor(size=(M, K), device=DEVICE).random() for _ in "ab"]
        packed, plain = (
            [each.to_packed_tensor(dim=1) for each in made],
            [each.to(torch.float32) for each in made],
        )
    exponents = [
        MXScaleTensor(size=(M, K // vector), device=DEVICE).random(low=1 / 8, high=4) for _ in "ab"
    ]
    wide = [each.to(torch.float32).repeat_interleave(vector, dim=1) for each in exponents]
    scaled = [number * scale for number, scale in zip(plain, wide)]
    out = torch.empty((M, N), device=DEVICE)
    grid = (M // 64, N // 64)
    scaled_kernel[grid](
        packed[0], exponents[0].data, packed[1], exponents[1].data, out, M, N, K,
        BLOCK_M=64, BLOCK_N=64, BLOCK_K=64, VECTOR=vector,
        PACKED=1 if kind == "e4m3" else 2, KIND=kind,
    )  # fmt: skip
    torch.testing.assert_close(out, scaled[0] @ scaled[1].T, atol=1e-3, rtol=1e-3)


check("e4m3", 32)
check("e2m1", 32)
