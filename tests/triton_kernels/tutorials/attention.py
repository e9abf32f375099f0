"""Tutorial 6, attention in one kernel (flash attention 2): forward and backward, causal or not."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.jit
def inner_loop(
    acc, l_i, m_i, q, k_desc, v_desc, base, start_m, qk_scale,
    BLOCK_M: tl.constexpr, HEAD: tl.constexpr, BLOCK_N: tl.constexpr,
    STAGE: tl.constexpr, offs_m, offs_n, CONTEXT: tl.constexpr,
):  # fmt: skip
    if STAGE == 1:
        lo, hi = 0, start_m * BLOCK_M
    elif STAGE == 2:
        lo, hi = start_m * BLOCK_M, (start_m + 1) * BLOCK_M
        lo = tl.multiple_of(lo, BLOCK_M)
    else:
        lo, hi = 0, CONTEXT
    at = base + lo
    for start_n in tl.range(lo, hi, BLOCK_N):
        start_n = tl.multiple_of(start_n, BLOCK_N)
        k = k_desc.load([at, 0]).T
        qk = tl.dot(q, k)
        if STAGE == 2:
            mask = offs_m[:, None] >= (start_n + offs_n[None, :])
            qk = qk * qk_scale + tl.where(mask, 0, -1.0e6)
            m_ij = tl.maximum(m_i, tl.max(qk, 1))
            qk -= m_ij[:, None]
        else:
            m_ij = tl.maximum(m_i, tl.max(qk, 1) * qk_scale)
            qk = qk * qk_scale - m_ij[:, None]
        p = tl.math.exp2(qk)
        alpha = tl.math.exp2(m_i - m_ij)
        l_ij = tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = v_desc.load([at, 0])
        acc = tl.dot(p.to(v.dtype), v, acc)
        l_i = l_i * alpha + l_ij
        m_i = m_ij
        at += BLOCK_N
    return acc, l_i, m_i


def set_block_shapes(given):
    if not isinstance(given["desc_q"], TensorDescriptor):
        return
    head = given["HEAD"]
    given["desc_q"].block_shape = [given["BLOCK_M"], head]
    given["desc_o"].block_shape = [given["BLOCK_M"], head]
    given["desc_k"].block_shape = [given["BLOCK_N"], head]
    given["desc_v"].block_shape = [given["BLOCK_N"], head]


CONFIGURATIONS = [
    triton.Config(
        {"BLOCK_M": m, "BLOCK_N": n}, num_stages=2, num_warps=4, pre_hook=set_block_shapes
    )
    for m, n in ((64, 128), (64, 32), (128, 64))
]


def pruned(configurations, given, **options):
    context, causal = options["CONTEXT"], options["STAGE"] == 3
    return [
        each
        for each in configurations
        if each.kwargs["BLOCK_M"] <= context
        and (each.kwargs["BLOCK_M"] >= each.kwargs["BLOCK_N"] or not causal)
    ]


@triton.jit
def described(desc, shape, strides, block_shape):
    if isinstance(desc, tl.tensor_descriptor):
        return desc
    else:
        return tl.make_tensor_descriptor(desc, shape, strides, block_shape)


@triton.autotune(
    configs=CONFIGURATIONS, key=["CONTEXT", "HEAD"], prune_configs_by={"early_config_prune": pruned}
)
@triton.jit
def forward_kernel(
    sm_scale, M, Z, H, desc_q, desc_k, desc_v, desc_o,
    CONTEXT: tl.constexpr, HEAD: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGE: tl.constexpr,
):  # fmt: skip
    tl.static_assert(BLOCK_N <= 128)
    start_m, head = tl.program_id(0), tl.program_id(1)
    off_z, off_h = head // H, head % H
    rows = Z * H * CONTEXT
    desc_q = described(desc_q, [rows, HEAD], [HEAD, 1], [BLOCK_M, HEAD])
    desc_k = described(desc_k, [rows, HEAD], [HEAD, 1], [BLOCK_N, HEAD])
    desc_v = described(desc_v, [rows, HEAD], [HEAD, 1], [BLOCK_N, HEAD])
    desc_o = described(desc_o, [rows, HEAD], [HEAD, 1], [BLOCK_M, HEAD])
    base = off_z * (CONTEXT * H) + off_h * CONTEXT
    first = base + start_m * BLOCK_M
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32) + 1.0
    acc = tl.zeros([BLOCK_M, HEAD], dtype=tl.float32)
    qk_scale = sm_scale
    qk_scale *= 1.44269504
    q = desc_q.load([first, 0])
    if STAGE & 1:
        acc, l_i, m_i = inner_loop(
            acc, l_i, m_i, q, desc_k, desc_v, base, start_m, qk_scale,
            BLOCK_M, HEAD, BLOCK_N, 4 - STAGE, offs_m, offs_n, CONTEXT,
        )  # fmt: skip
    if STAGE & 2:
        acc, l_i, m_i = inner_loop(
            acc, l_i, m_i, q, desc_k, desc_v, base, start_m, qk_scale,
            BLOCK_M, HEAD, BLOCK_N, 2, offs_m, offs_n, CONTEXT,
        )  # fmt: skip
    m_i += tl.math.log2(l_i)
    acc = acc / l_i[:, None]
    tl.store(M + head * CONTEXT + offs_m, m_i)
    desc_o.store([first, 0], acc.to(q.dtype))


@triton.jit
def delta_kernel(O, DO, Delta, CONTEXT, BLOCK_M: tl.constexpr, HEAD: tl.constexpr):  # noqa: E741
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    head, columns = tl.program_id(1), tl.arange(0, HEAD)
    at = head * HEAD * CONTEXT + rows[:, None] * HEAD + columns[None, :]
    do = tl.load(DO + at).to(tl.float32)
    tl.store(Delta + head * CONTEXT + rows, tl.sum(tl.load(O + at) * do, axis=1))


@triton.jit
def keys_gradient(
    dk, dv, Q, k, v, DO, M, D, stride_row, stride_column, start_n, start_m, steps,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    offs_m = start_m + tl.arange(0, BLOCK_M)
    offs_n = start_n + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, HEAD)
    qT_at = Q + offs_m[None, :] * stride_row + offs_k[:, None] * stride_column
    do_at = DO + offs_m[:, None] * stride_row + offs_k[None, :] * stride_column
    tl.static_assert(BLOCK_N % BLOCK_M == 0)
    now = start_m
    for _ in range(steps):
        qT = tl.load(qT_at)
        offs_m = now + tl.arange(0, BLOCK_M)
        m = tl.load(M + offs_m)
        pT = tl.math.exp2(tl.dot(k, qT) - m[None, :])
        if MASK:
            pT = tl.where(offs_m[None, :] >= offs_n[:, None], pT, 0.0)
        do = tl.load(do_at)
        dv += tl.dot(pT.to(tl.float16), do)
        dpT = tl.dot(v, tl.trans(do)).to(tl.float32)
        dsT = (pT * (dpT - tl.load(D + offs_m)[None, :])).to(tl.float16)
        dk += tl.dot(dsT, tl.trans(qT))
        now += BLOCK_M
        qT_at += BLOCK_M * stride_row
        do_at += BLOCK_M * stride_row
    return dk, dv


@triton.jit
def queries_gradient(
    dq, q, K, V, do, m, D, stride_row, stride_column, start_m, start_n, steps,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    offs_m = start_m + tl.arange(0, BLOCK_M)
    offs_n = start_n + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, HEAD)
    kT_at = K + offs_n[None, :] * stride_row + offs_k[:, None] * stride_column
    vT_at = V + offs_n[None, :] * stride_row + offs_k[:, None] * stride_column
    delta = tl.load(D + offs_m)
    now = start_n
    for _ in range(steps):
        kT, vT = tl.load(kT_at), tl.load(vT_at)
        p = tl.math.exp2(tl.dot(q, kT) - m)
        if MASK:
            offs_n = now + tl.arange(0, BLOCK_N)
            p = tl.where(offs_m[:, None] >= offs_n[None, :], p, 0.0)
        ds = (p * (tl.dot(do, vT).to(tl.float32) - delta[:, None])).to(tl.float16)
        dq += tl.dot(ds, tl.trans(kT))
        now += BLOCK_N
        kT_at += BLOCK_N * stride_row
        vT_at += BLOCK_N * stride_row
    return dq


@triton.jit
def backward_kernel(
    Q, K, V, sm_scale, DO, DQ, DK, DV, M, D, stride_z, stride_h, stride_row, stride_column, H,
    CONTEXT: tl.constexpr, BLOCK_M1: tl.constexpr, BLOCK_N1: tl.constexpr,
    BLOCK_M2: tl.constexpr, BLOCK_N2: tl.constexpr, SPLIT: tl.constexpr,
    HEAD: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    LN2: tl.constexpr = 0.6931471824645996
    head = tl.program_id(2)
    adjusted = (stride_h * (head % H) + stride_z * (head // H)).to(tl.int64)
    pid = tl.program_id(0)
    Q += adjusted
    K += adjusted
    V += adjusted
    DO += adjusted
    DQ += adjusted
    DK += adjusted
    DV += adjusted
    M += (head * CONTEXT).to(tl.int64)
    D += (head * CONTEXT).to(tl.int64)
    offs_k = tl.arange(0, HEAD)
    start_n, start_m = pid * BLOCK_N1, 0
    SMALL_M: tl.constexpr = BLOCK_M1 // SPLIT
    offs_n = start_n + tl.arange(0, BLOCK_N1)
    dv = tl.zeros([BLOCK_N1, HEAD], dtype=tl.float32)
    dk = tl.zeros([BLOCK_N1, HEAD], dtype=tl.float32)
    k = tl.load(K + offs_n[:, None] * stride_row + offs_k[None, :] * stride_column)
    v = tl.load(V + offs_n[:, None] * stride_row + offs_k[None, :] * stride_column)
    if CAUSAL:
        start_m = start_n
        dk, dv = keys_gradient(
            dk, dv, Q, k, v, DO, M, D, stride_row, stride_column, start_n, start_m,
            BLOCK_N1 // SMALL_M, SMALL_M, BLOCK_N1, HEAD, MASK=True,
        )  # fmt: skip
        start_m += (BLOCK_N1 // SMALL_M) * SMALL_M
    steps = (CONTEXT - start_m) // BLOCK_M1
    dk, dv = keys_gradient(
        dk, dv, Q, k, v, DO, M, D, stride_row, stride_column, start_n, start_m, steps,
        BLOCK_M1, BLOCK_N1, HEAD, MASK=False,
    )  # fmt: skip
    at = offs_n[:, None] * stride_row + offs_k[None, :] * stride_column
    tl.store(DV + at, dv)
    dk *= sm_scale
    tl.store(DK + at, dk)
    start_m, start_n, steps = pid * BLOCK_M2, 0, CONTEXT // BLOCK_N2
    SMALL_N: tl.constexpr = BLOCK_N2 // SPLIT
    offs_m = start_m + tl.arange(0, BLOCK_M2)
    rows = offs_m[:, None] * stride_row + offs_k[None, :] * stride_column
    q, do = tl.load(Q + rows), tl.load(DO + rows)
    dq = tl.zeros([BLOCK_M2, HEAD], dtype=tl.float32)
    m = tl.load(M + offs_m)[:, None]
    if CAUSAL:
        end_n = start_m + BLOCK_M2
        masked: tl.constexpr = BLOCK_M2 // SMALL_N
        dq = queries_gradient(
            dq, q, K, V, do, m, D, stride_row, stride_column, start_m, end_n - masked * SMALL_N,
            masked, BLOCK_M2, SMALL_N, HEAD, MASK=True,
        )  # fmt: skip
        end_n -= masked * SMALL_N
        steps = end_n // BLOCK_N2
        start_n = end_n - steps * BLOCK_N2
    dq = queries_gradient(
        dq, q, K, V, do, m, D, stride_row, stride_column, start_m, start_n, steps,
        BLOCK_M2, BLOCK_N2, HEAD, MASK=False,
    )  # fmt: skip
    dq *= LN2
    tl.store(DQ + rows, dq)


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, sm_scale):
        head, (Z, H, context) = q.shape[-1], q.shape[:3]
        o = torch.empty_like(q)
        M = torch.empty((Z, H, context), device=q.device, dtype=torch.float32)
        given = [q, k, v, o]
        if torch.cuda.get_device_capability()[0] >= 9:
            given = [
                TensorDescriptor(each, [Z * H * context, head], [head, 1], [1, 1]) for each in given
            ]
        triton.set_allocator(
            lambda size, align, stream: torch.empty(size, dtype=torch.int8, device=DEVICE)
        )
        forward_kernel[lambda meta: (triton.cdiv(context, meta["BLOCK_M"]), Z * H, 1)](
            sm_scale, M, Z, H, *given, CONTEXT=context, HEAD=head, STAGE=3 if causal else 1
        )
        ctx.save_for_backward(q, k, v, o, M)
        ctx.sm_scale, ctx.causal = sm_scale, causal
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, M = ctx.saved_tensors
        do = do.contiguous()
        (Z, H, context), head = q.shape[:3], q.shape[-1]
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        delta = torch.empty_like(M)
        delta_kernel[(context // 64, Z * H)](o, do, delta, context, BLOCK_M=64, HEAD=head)
        scaled = k * (ctx.sm_scale * 1.4426950408889634)
        backward_kernel[(context // 64, 1, Z * H)](
            q, scaled, v, ctx.sm_scale, do, dq, dk, dv, M, delta, *q.stride(), H,
            CONTEXT=context, BLOCK_M1=32, BLOCK_N1=64, BLOCK_M2=64, BLOCK_N2=32, SPLIT=2,
            HEAD=head, CAUSAL=ctx.causal, num_warps=4, num_stages=3,
        )  # fmt: skip
        return dq, dk, dv, None, None


torch.manual_seed(20)
q, k, v = (
    torch.empty((1, 2, 128, 32), dtype=torch.float16, device=DEVICE)
    .normal_(mean=0.0, std=0.5)
    .requires_grad_()
    for _ in "qkv"
)
for causal in (True, False):
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.5
    if causal:
        scores[:, :, torch.tril(torch.ones((128, 128), device=DEVICE)) == 0] = float("-inf")
    wanted = torch.matmul(torch.softmax(scores.float(), dim=-1).half(), v)
    gradient = torch.randn_like(wanted)
    expected = torch.autograd.grad(wanted, (q, k, v), gradient)
    found = Attention.apply(q, k, v, causal, 0.5).half()
    torch.testing.assert_close(found, wanted, atol=1e-2, rtol=0)
    gradients = torch.autograd.grad(found, (q, k, v), gradient)
    torch.testing.assert_close(gradients, expected, atol=2e-2, rtol=0)
