"""Kernels as people write them."""

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.tools.tensor_descriptor import TensorDescriptor

Tensor = torch.Tensor


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)


def add(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    add_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](
        x, y, out, x.numel(), BLOCK=128
    )
    return out


@triton.autotune(
    configs=[triton.Config({"BLOCK": 32}, num_warps=2), triton.Config({"BLOCK": 16}, num_warps=4)],
    key=["M", "N", "K"],
)
@triton.heuristics({"EVEN_K": lambda given: given["K"] % given["BLOCK"] == 0})
@triton.jit
def matmul_kernel(a, b, c, M, N, K, BLOCK: tl.constexpr, EVEN_K: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inner = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for begin in range(tl.cdiv(K, BLOCK)):
        k = begin * BLOCK + inner
        left = (rows[:, None] < M) & (k[None, :] < K)
        right = (k[:, None] < K) & (columns[None, :] < N)
        x = tl.load(a + rows[:, None] * K + k[None, :], mask=left, other=0.0)
        y = tl.load(b + k[:, None] * N + columns[None, :], mask=right, other=0.0)
        total = tl.dot(x, y, total)
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(c.dtype.element_ty), mask=mask)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    c = a.new_empty(a.shape[0], b.shape[1])
    sizes = (*c.shape, a.shape[1])
    matmul_kernel[lambda meta: tuple(triton.cdiv(n, meta["BLOCK"]) for n in c.shape)](
        a, b, c, *sizes
    )
    return c


@triton.jit
def blend(x, y):
    return x * y + x


@triton.jit
def blend_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(x + at, mask=at < n), tl.load(y + at, mask=at < n)
    tl.store(out + at, blend(a, b) - tl.maximum(a, b), mask=at < n)


@triton.jit
def optional_kernel(x, bias, out, n, scale, negated, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    if bias is not None:
        value += tl.load(bias + at, mask=at < n)
    if negated:
        value = -value
    value = libdevice.tanh(value * scale)
    tl.store(out + at, value, mask=at < n)


@triton.jit
def count_kernel(x, total, most, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0)
    tl.atomic_add(total, tl.sum(value))
    tl.atomic_max(most, tl.max(tl.where(at < n, at, 0)))


@triton.jit
def tile_kernel(x, out, M, N, BLOCK: tl.constexpr):
    begin = tl.program_id(0) * BLOCK
    source = tl.make_block_ptr(x, (M, N), (N, 1), (begin, 0), (BLOCK, BLOCK), (1, 0))
    target = tl.make_block_ptr(out, (M, N), (N, 1), (begin, 0), (BLOCK, BLOCK), (1, 0))
    for _ in range(tl.cdiv(N, BLOCK)):
        value = tl.load(source, boundary_check=(0, 1), padding_option="zero")
        tl.store(target, value * 2, boundary_check=(0, 1))
        source = tl.advance(source, (0, BLOCK))
        target = tl.advance(target, (0, BLOCK))


@triton.jit
def described_kernel(x, out, BLOCK: tl.constexpr):
    row, column = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    out.store([row, column], x.load([row, column]) + 1)


def described(x: Tensor, out: Tensor) -> None:
    pair = [TensorDescriptor.from_tensor(each, [16, 16]) for each in (x, out)]
    described_kernel[(x.shape[0] // 16, x.shape[1] // 16)](*pair, 16)


@triton.jit
def unmasked_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at)  # no mask
    tl.store(out + at, value, mask=at < n)


@triton.jit
def colliding_kernel(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + tl.program_id(0) * BLOCK + at))


@triton.jit
def through_table_kernel(table, out, BLOCK: tl.constexpr):
    row = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    at = tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0) * BLOCK + at, tl.load(row + at))


def made_here(factor: float) -> Any:
    """A kernel that takes a constant from the function around it."""
    scale = tl.constexpr(factor)

    @triton.jit
    def scaled_kernel(x, out, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at) * scale)

    return scaled_kernel


@triton.jit
def large_kernel(a, b, c, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for step in range(8):
        x = tl.load(a + at[:, None] * 8 * BLOCK + step * BLOCK + at[None, :])
        y = tl.load(b + (step * BLOCK + at)[:, None] * BLOCK + at[None, :])
        total = tl.dot(x, y, total)
    tl.store(c + at[:, None] * BLOCK + at[None, :], total)


@triton.jit
def far_rows_kernel(x, total, rows, width, BLOCK: tl.constexpr):
    at, summed = tl.arange(0, BLOCK), tl.zeros((BLOCK,), tl.float32)
    for row in range(rows):
        summed += tl.load(x + row.to(tl.int64) * width + at)
    tl.store(total + at, summed)


@triton.jit
def asserts(x):
    tl.device_assert(tl.load(x) < 1, "the number is less than one")


@triton.jit
def breaks(x):
    for i in range(4):
        if i == 2:
            break
        tl.store(x + i, 1.0)


@triton.jit
def changes_its_type(x, n):
    total = 0
    for _ in range(n):
        total = total + 1.5
    tl.store(x, total)


@triton.jit
def small_product(x, K: tl.constexpr):
    a = tl.full((16, K), 1, tl.float16)
    tl.store(x, tl.max(tl.dot(a, tl.trans(a))))


def tuned(configs):
    return triton.autotune(configs, key=[])(small_product)
