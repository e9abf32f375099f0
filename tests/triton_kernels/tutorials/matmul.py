"""Tutorial 3, a matrix product: autotuned, in groups of rows, with an activation; float8."""

import torch
import triton
import triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()


def configurations() -> list[triton.Config]:
    return [
        triton.Config(
            {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP": 8}, num_stages=stages, num_warps=w
        )
        for m, n, k, stages, w in ((64, 64, 32, 3, 4), (128, 64, 32, 4, 4), (32, 64, 32, 5, 2))
    ]


@triton.autotune(configs=configurations(), key=["M", "N", "K"])
@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, a_row, a_column, b_row, b_column, c_row, c_column,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(axis=0)
    across, down = tl.cdiv(N, BLOCK_N), tl.cdiv(M, BLOCK_M)
    in_group = GROUP * across
    group = pid // in_group
    first = group * GROUP
    height = min(down - first, GROUP)
    pid_m = first + ((pid % in_group) % height)
    pid_n = (pid % in_group) // height
    tl.assume(pid_m >= 0)
    tl.assume(pid_n >= 0)
    tl.assume(a_row > 0)
    rows = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    columns = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    inner = tl.arange(0, BLOCK_K)
    a_at = a_ptr + (rows[:, None] * a_row + inner[None, :] * a_column)
    b_at = b_ptr + (inner[:, None] * b_row + columns[None, :] * b_column)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_at, mask=inner[None, :] < K - k * BLOCK_K, other=0.0)
        b = tl.load(b_at, mask=inner[:, None] < K - k * BLOCK_K, other=0.0)
        total = tl.dot(a, b, total)
        a_at += BLOCK_K * a_column
        b_at += BLOCK_K * b_row
    if ACTIVATION == "leaky_relu":
        total = leaky_relu(total)
    c = total.to(tl.float16)
    c_rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    c_columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_at = c_ptr + c_row * c_rows[:, None] + c_column * c_columns[None, :]
    tl.store(c_at, c, mask=(c_rows[:, None] < M) & (c_columns[None, :] < N))


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


def matmul(a: torch.Tensor, b: torch.Tensor, activation: str = "") -> torch.Tensor:
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty((M, N), device=a.device, dtype=torch.float16)
    matmul_kernel[
        lambda meta: (triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"]),)
    ](a, b, c, M, N, K, *a.stride(), *b.stride(), *c.stride(), ACTIVATION=activation)
    return c


a, b = (torch.rand((128, 128), device=DEVICE, dtype=torch.float16) - 0.5 for _ in range(2))
torch.testing.assert_close(matmul(a, b), torch.matmul(a, b), atol=1e-2, rtol=0)
leaky = torch.nn.functional.leaky_relu(torch.matmul(a, b), 0.01)
torch.testing.assert_close(matmul(a, b, "leaky_relu"), leaky, atol=1e-2, rtol=0)
a8, b8 = a.to(torch.float8_e5m2), b.T.to(torch.float8_e5m2)
product = torch.matmul(a8.to(torch.float16), b8.to(torch.float16))
torch.testing.assert_close(matmul(a8, b8), product, atol=0.125, rtol=0)
