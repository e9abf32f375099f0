"""Tutorial 9, products by programs that stay: pointers, descriptors of host and kernel."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

DEVICE = triton.runtime.driver.active.get_active_torch_device()
BLOCK, INNER, GROUP = 32, 32, 8


def described(grid, kernel, arguments):
    """What a profiler shows for a launch."""
    M, N, K = arguments["M"], arguments["N"], arguments["K"]
    return {"name": f"{kernel.name} [M={M}, N={N}, K={K}]", "flops16": 2.0 * M * N * K}


@triton.jit
def place(tile, in_group, down, GROUP: tl.constexpr):
    first = (tile // in_group) * GROUP
    height = min(down - first, GROUP)
    return first + (tile % height), (tile % in_group) // height


@triton.jit(launch_metadata=described)
def pointers_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, a_row, a_column, b_row, b_column, c_row, c_column,
    BLOCK: tl.constexpr, INNER: tl.constexpr, GROUP: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    down, across = tl.cdiv(M, BLOCK), tl.cdiv(N, BLOCK)
    in_group = GROUP * across
    inner = tl.arange(0, INNER)
    for tile in tl.range(tl.program_id(axis=0), down * across, PROGRAMS, flatten=True):
        pid_m, pid_n = place(tile, in_group, down, GROUP)
        rows = pid_m * BLOCK + tl.arange(0, BLOCK)
        columns = pid_n * BLOCK + tl.arange(0, BLOCK)
        rows = tl.max_contiguous(tl.multiple_of(tl.where(rows < M, rows, 0), BLOCK), BLOCK)
        columns = tl.where(columns < N, columns, 0)
        columns = tl.max_contiguous(tl.multiple_of(columns, BLOCK), BLOCK)
        total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
        for k in range(tl.cdiv(K, INNER)):
            at = k * INNER + inner
            left = a_ptr + (rows[:, None] * a_row + at[None, :] * a_column)
            right = b_ptr + (at[:, None] * b_row + columns[None, :] * b_column)
            a = tl.load(left, mask=inner[None, :] < K - k * INNER, other=0.0)
            b = tl.load(right, mask=inner[:, None] < K - k * INNER, other=0.0)
            total = tl.dot(a, b, total)
        rows = pid_m * BLOCK + tl.arange(0, BLOCK)
        columns = pid_n * BLOCK + tl.arange(0, BLOCK)
        out = c_ptr + c_row * rows[:, None] + c_column * columns[None, :]
        inside = (rows[:, None] < M) & (columns[None, :] < N)
        tl.store(out, total.to(c_ptr.dtype.element_ty), mask=inside)


@triton.jit(launch_metadata=described)
def tma_kernel(
    a_desc, b_desc, c_desc, M, N, K,
    BLOCK: tl.constexpr, INNER: tl.constexpr, GROUP: tl.constexpr, PROGRAMS: tl.constexpr,
    HALVES: tl.constexpr,
):  # fmt: skip
    down, across = tl.cdiv(M, BLOCK), tl.cdiv(N, BLOCK)
    in_group = GROUP * across
    for tile in tl.range(tl.program_id(axis=0), down * across, PROGRAMS, flatten=True):
        pid_m, pid_n = place(tile, in_group, down, GROUP)
        total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
        for k in range(tl.cdiv(K, INNER)):
            a = a_desc.load([pid_m * BLOCK, k * INNER])
            b = b_desc.load([pid_n * BLOCK, k * INNER])
            total = tl.dot(a, b.T, total)
        if HALVES:
            parts = tl.permute(tl.reshape(total, (BLOCK, 2, BLOCK // 2)), (0, 2, 1))
            left, right = tl.split(parts)
            c_desc.store([pid_m * BLOCK, pid_n * BLOCK], left.to(tl.float16))
            c_desc.store([pid_m * BLOCK, pid_n * BLOCK + BLOCK // 2], right.to(tl.float16))
        else:
            c_desc.store([pid_m * BLOCK, pid_n * BLOCK], total.to(tl.float16))


@triton.jit(launch_metadata=described)
def device_tma_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    BLOCK: tl.constexpr, INNER: tl.constexpr, GROUP: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    down, across = tl.cdiv(M, BLOCK), tl.cdiv(N, BLOCK)
    a_desc = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [BLOCK, INNER])
    b_desc = tl.make_tensor_descriptor(b_ptr, [N, K], [K, 1], [BLOCK, INNER])
    c_desc = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BLOCK, BLOCK])
    in_group = GROUP * across
    for tile in tl.range(tl.program_id(axis=0), down * across, PROGRAMS, flatten=True):
        pid_m, pid_n = place(tile, in_group, down, GROUP)
        total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
        for k in range(tl.cdiv(K, INNER)):
            a = a_desc.load([pid_m * BLOCK, k * INNER])
            b = b_desc.load([pid_n * BLOCK, k * INNER])
            total = tl.dot(a, b.T, total)
        c_desc.store([pid_m * BLOCK, pid_n * BLOCK], total.to(tl.float16))


PROCESSORS = torch.cuda.get_device_properties("cuda").multi_processor_count


def product(kind: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product of a and of b, which is turned."""
    (M, K), N = a.shape, b.shape[0]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    programs = min(PROCESSORS, triton.cdiv(M, BLOCK) * triton.cdiv(N, BLOCK))
    blocks = {"BLOCK": BLOCK, "INNER": INNER, "GROUP": GROUP, "PROGRAMS": programs}
    if kind == "pointers":
        turned = b.T
        strides = (*a.stride(), *turned.stride(), *c.stride())
        pointers_kernel[(programs,)](a, turned, c, M, N, K, *strides, **blocks)
    elif kind == "device":
        triton.set_allocator(
            lambda size, align, stream: torch.empty(size, device=DEVICE, dtype=torch.int8)
        )
        device_tma_kernel[(programs,)](a, b, c, M, N, K, **blocks)
    else:
        halves = kind == "halves"
        tiles = (
            TensorDescriptor(each, each.shape, each.stride(), shape)
            for each, shape in (
                (a, [BLOCK, INNER]),
                (b, [BLOCK, INNER]),
                (c, [BLOCK, BLOCK // 2 if halves else BLOCK]),
            )
        )
        tma_kernel[(programs,)](*tiles, M, N, K, **blocks, HALVES=halves)
    return c


a, b = (torch.randn((96, 64), device=DEVICE, dtype=torch.float16) for _ in "ab")
wanted = torch.matmul(a, b.T)
kinds = ["pointers"]
if torch.cuda.get_device_capability()[0] >= 9:
    kinds += ["tma", "halves", "device"]
for kind in kinds:
    torch.testing.assert_close(product(kind, a, b), wanted, atol=1e-1, rtol=1e-2)
