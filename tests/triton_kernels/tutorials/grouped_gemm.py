"""Tutorial 8, a group of products in one launch: tables of pointers, and descriptors made on it."""

import torch
import triton
import triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()
CONFIGURATIONS = [
    triton.Config({"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "PROGRAMS": 8}),
    triton.Config({"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "PROGRAMS": 4}),
]


@triton.autotune(configs=CONFIGURATIONS, key=["group_size"])
@triton.jit
def grouped_kernel(
    group_a, group_b, group_c, sizes, strides, group_size,
    PROGRAMS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    last_end = 0
    for g in range(group_size):
        M, N, K = tl.load(sizes + g * 3), tl.load(sizes + g * 3 + 1), tl.load(sizes + g * 3 + 2)
        across = tl.cdiv(N, BLOCK_N)
        tiles = tl.cdiv(M, BLOCK_M) * across
        while tile >= last_end and tile < last_end + tiles:
            lda, ldb = tl.load(strides + g * 3), tl.load(strides + g * 3 + 1)
            ldc = tl.load(strides + g * 3 + 2)
            a_ptr = tl.load(group_a + g).to(tl.pointer_type(tl.float16))
            b_ptr = tl.load(group_b + g).to(tl.pointer_type(tl.float16))
            c_ptr = tl.load(group_c + g).to(tl.pointer_type(tl.float16))
            here = tile - last_end
            rows = (here // across) * BLOCK_M + tl.arange(0, BLOCK_M)
            columns = (here % across) * BLOCK_N + tl.arange(0, BLOCK_N)
            inner = tl.arange(0, BLOCK_K)
            a_at = a_ptr + rows[:, None] * lda + inner[None, :]
            b_at = b_ptr + inner[:, None] * ldb + columns[None, :]
            total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            for _ in range(tl.cdiv(K, BLOCK_K)):
                tl.multiple_of(a_at, [16, 16])
                tl.multiple_of(b_at, [16, 16])
                total += tl.dot(tl.load(a_at), tl.load(b_at))
                a_at += BLOCK_K
                b_at += BLOCK_K * ldb
            tl.store(c_ptr + ldc * rows[:, None] + columns[None, :], total.to(tl.float16))
            tile += PROGRAMS
        last_end = last_end + tiles


@triton.jit
def described_kernel(
    group_a, group_b, group_c, sizes, strides, group_size,
    PROGRAMS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    last_end = 0
    for g in range(group_size):
        M, N, K = tl.load(sizes + g * 3), tl.load(sizes + g * 3 + 1), tl.load(sizes + g * 3 + 2)
        across = tl.cdiv(N, BLOCK_N)
        tiles = tl.cdiv(M, BLOCK_M) * across
        if tile >= last_end and tile < last_end + tiles:
            lda, ldb = tl.load(strides + g * 3), tl.load(strides + g * 3 + 1)
            ldc = tl.load(strides + g * 3 + 2)
            a_ptr = tl.load(group_a + g).to(tl.pointer_type(tl.float16))
            b_ptr = tl.load(group_b + g).to(tl.pointer_type(tl.float16))
            c_ptr = tl.load(group_c + g).to(tl.pointer_type(tl.float16))
            a_desc = tl.make_tensor_descriptor(a_ptr, [M, K], [lda, 1], [BLOCK_M, BLOCK_K])
            b_desc = tl.make_tensor_descriptor(b_ptr, [N, K], [ldb, 1], [BLOCK_N, BLOCK_K])
            c_desc = tl.make_tensor_descriptor(c_ptr, [M, N], [ldc, 1], [BLOCK_M, BLOCK_N])
            while tile >= last_end and tile < last_end + tiles:
                here = tile - last_end
                m, n = (here // across) * BLOCK_M, (here % across) * BLOCK_N
                total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
                for k in range(tl.cdiv(K, BLOCK_K)):
                    a = a_desc.load([m, k * BLOCK_K])
                    b = b_desc.load([n, k * BLOCK_K])
                    total += tl.dot(a, b.T)
                c_desc.store([m, n], total.to(tl.float16))
                tile += PROGRAMS
        last_end = last_end + tiles


def group(kernel, group_a, group_b, turned: bool = False, **blocks: int) -> list[torch.Tensor]:
    group_c, sizes, strides = [], [], []
    for a, b in zip(group_a, group_b):
        (M, K), N = a.shape, b.shape[0 if turned else 1]
        c = torch.empty((M, N), device=DEVICE, dtype=a.dtype)
        group_c.append(c)
        sizes += [M, N, K]
        strides += [a.stride(0), b.stride(0), c.stride(0)]
    tables = (
        torch.tensor([each.data_ptr() for each in part], device=DEVICE)
        for part in (group_a, group_b, group_c)
    )
    numbers = (torch.tensor(each, dtype=torch.int32, device=DEVICE) for each in (sizes, strides))
    kernel[lambda meta: (meta["PROGRAMS"],)](*tables, *numbers, len(group_a), **blocks)
    return group_c


a = [torch.rand((size, size), device=DEVICE, dtype=torch.float16) for size in (128, 64, 32)]
b = [torch.rand((size, size), device=DEVICE, dtype=torch.float16) for size in (128, 64, 32)]
wanted = [torch.matmul(one, other) for one, other in zip(a, b)]
torch.testing.assert_close(group(grouped_kernel, a, b), wanted, atol=1e-1, rtol=1e-2)
if torch.cuda.get_device_capability()[0] >= 9:
    triton.set_allocator(
        lambda size, align, stream: torch.empty(size, device=DEVICE, dtype=torch.int8)
    )
    turned = [each.T.contiguous() for each in b]
    blocks = {"PROGRAMS": 8, "BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32}
    found = group(described_kernel, a, turned, turned=True, **blocks)
    torch.testing.assert_close(found, wanted, atol=1e-1, rtol=1e-2)
