"""Attention on a virtual GPU: the CPU's numbers, by the kernel that the card would have chosen."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from tests.virtual.against_cpu import numbers, same

pytestmark = pytest.mark.usefixtures("seeded")

aten = torch.ops.aten
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 2e-2,
    torch.bfloat16: 5e-2,
}
DTYPES = list(TOLERANCE)


def attended(*inputs, outputs_within=0.0, **options):
    within = TOLERANCE[inputs[0].dtype]
    same(
        lambda q, k, v, *mask: scaled_dot_product_attention(q, k, v, *mask, **options),
        *inputs,
        within=within,
        outputs_within=outputs_within,
    )


def three(dtype=torch.float32, queries=16, keys=16, head_dim=8, device="cpu"):
    shapes = [(2, 4, queries, head_dim), (2, 4, keys, head_dim), (2, 4, keys, head_dim)]
    return [torch.randn(s, dtype=dtype, device=device, requires_grad=True) for s in shapes]


# ---- the CPU's numbers ----


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_outputs_are_the_cpus_bit_for_bit(dtype, causal):
    attended(*three(dtype), is_causal=causal)


@pytest.mark.parametrize("dtype", DTYPES)
def test_masks_that_are_added(dtype):
    mask = torch.randn(16, 16, dtype=dtype)
    attended(*three(dtype), mask)


@pytest.mark.parametrize("dtype", DTYPES)
def test_masks_that_learn(dtype):
    attended(*three(dtype), numbers(2, 1, 16, 16, dtype=dtype))


def test_a_row_that_sees_nothing_is_zero():
    mask = torch.rand(16, 16) > 0.5
    mask[3] = False
    attended(*three(), mask)


@pytest.mark.parametrize("dtype", DTYPES)
def test_grouped_queries(dtype):
    query, key, value = (
        numbers(2, 4, 16, 8, dtype=dtype),
        *(numbers(2, 2, 16, 8, dtype=dtype) for _ in range(2)),
    )
    attended(query, key, value, enable_gqa=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes_that_fit_no_tile(dtype):
    attended(*three(dtype, 15, 13, 5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_wider_than_keys(dtype):
    query, key, _ = three(dtype)
    attended(query, key, numbers(2, 4, 16, 24, dtype=dtype))


def test_modules_made_of_attention():
    x = numbers(3, 6, 16)
    attention = nn.MultiheadAttention(16, 4, batch_first=True)
    same(lambda m, x: m(x, x, x, need_weights=False)[0], attention, x)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0)
    same(lambda m, x: m(x), nn.TransformerEncoder(layer, 2), x)


def test_the_encoders_fast_path_with_padding():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    padding = torch.arange(6) >= torch.tensor([[6], [4], [3]])
    with torch.no_grad():
        same(
            lambda m, x, padding: m(x, src_key_padding_mask=padding),
            nn.TransformerEncoder(layer, 2).eval(),
            torch.randn(3, 6, 16),
            padding,
            outputs_within=1e-6,
        )


def test_jagged_tensors():
    parts = [torch.randn(length, 4, 8) for length in (3, 7, 5)]

    def program(*parts):
        nested = torch.nested.nested_tensor(
            list(parts), layout=torch.jagged, device=parts[0].device
        )
        heads_first = nested.transpose(1, 2)
        attention = scaled_dot_product_attention(heads_first, heads_first, heads_first)
        return attention.transpose(1, 2).values()

    same(program, *parts)


# ---- the card's choice ----


@pytest.mark.parametrize(
    ("dtype", "mask", "expected"),
    [
        (torch.float32, None, SDPBackend.EFFICIENT_ATTENTION),
        (torch.float16, None, SDPBackend.CUDNN_ATTENTION),
        (torch.bfloat16, True, SDPBackend.CUDNN_ATTENTION),
        (torch.float32, True, SDPBackend.EFFICIENT_ATTENTION),
    ],
)
def test_an_h100_chooses_by_type(dtype, mask, expected):
    tensors = three(dtype, device="cuda")
    mask = mask and torch.zeros(16, 16, dtype=dtype, device="cuda")
    assert SDPBackend(torch._fused_sdp_choice(*tensors, mask)) == expected


def test_what_a_card_computes_step_by_step_takes_the_cpus_fused_kernel():
    odd = three(torch.float32, head_dim=5, device="cuda"), three(torch.float64, device="cuda")
    for tensors in odd:
        choice = SDPBackend(torch._fused_sdp_choice(*tensors))
        assert choice == SDPBackend.EFFICIENT_ATTENTION
        assert SDPBackend(torch._fused_sdp_choice(*tensors, dropout_p=0.5)) == SDPBackend.MATH


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        (SDPBackend.FLASH_ATTENTION, torch.float16),
        (SDPBackend.EFFICIENT_ATTENTION, torch.float32),
        (SDPBackend.CUDNN_ATTENTION, torch.bfloat16),
        (SDPBackend.MATH, torch.float16),
    ],
)
def test_the_user_may_choose(backend, dtype):
    with sdpa_kernel(backend):
        assert SDPBackend(torch._fused_sdp_choice(*three(dtype, device="cuda"))) == backend


def test_a_program_may_ask_which_kernels_can_be_used():
    cuda = torch.backends.cuda
    query, key, value = three(torch.float16, device="cuda")
    half = cuda.SDPAParams(query, key, value, None, 0.0, False, False)
    wide = cuda.SDPAParams(query.float(), key.float(), value.float(), None, 0.0, False, False)
    assert cuda.is_flash_attention_available()
    asked = (
        cuda.can_use_flash_attention,
        cuda.can_use_efficient_attention,
        cuda.can_use_cudnn_attention,
    )
    assert [ask(half) for ask in asked] == [True, True, True]
    assert [ask(wide) for ask in asked] == [False, True, False]


def test_what_no_kernel_can_do_is_refused_with_reasons():
    with (
        sdpa_kernel(SDPBackend.FLASH_ATTENTION),
        pytest.warns(UserWarning, match="Expected query, key and value to all be of dtype"),
        pytest.raises(RuntimeError, match="No available kernel"),
    ):
        scaled_dot_product_attention(*three(torch.float32, device="cuda"))


def test_each_backend_keeps_what_it_keeps_on_a_card():
    query = torch.randn(2, 4, 16, 8, dtype=torch.float16, device="cuda")
    flash = aten._scaled_dot_product_flash_attention(query, query, query)
    efficient = aten._scaled_dot_product_efficient_attention(query, query, query, None, True)
    cudnn = aten._scaled_dot_product_cudnn_attention(query, query, query, None, True)
    assert [t.shape for t in (flash[1], efficient[1], cudnn[1])] == [
        (2, 4, 16),
        (2, 4, 32),
        (2, 4, 16, 1),
    ]
    assert flash[6].dtype == torch.uint64
    assert flash[6].is_cuda
    assert efficient[2].device.type == "cpu"
    assert cudnn[6].is_cuda


# ---- dropout ----


@pytest.mark.parametrize("backend", ["efficient", "flash", "cudnn"])
def test_backward_knows_what_forward_dropped(backend):
    query, key, value = (torch.randn(1, 2, 5, 8) for _ in range(3))
    kernel = getattr(aten, f"_scaled_dot_product_{backend}_attention")
    extra = () if backend == "flash" else (None, True)
    dtype, within = (torch.float16, 1e-2) if backend == "flash" else (torch.float32, 1e-5)

    def attend(query, key, value):
        return kernel(*(t.to(dtype) for t in (query, key, value)), *extra, 0.5)[0].float()

    on_gpu = [t.cuda().requires_grad_() for t in (query, key, value)]
    torch.cuda.manual_seed(3)
    output = attend(*on_gpu)
    torch.cuda.manual_seed(3)
    unit = pad(torch.eye(5), (0, 3)).expand(1, 2, 5, 8).cuda()
    weights = attend(on_gpu[0], on_gpu[1], unit)[..., :5].cpu()

    query, key, value = (t.requires_grad_() for t in (query, key, value))
    scores = (query @ key.transpose(-1, -2) / math.sqrt(8)).softmax(-1)
    expected = (scores * (weights != 0) * 2) @ value
    torch.testing.assert_close(output.cpu(), expected, atol=within, rtol=within)
    grad = torch.randn_like(expected)
    torch.testing.assert_close(
        [g.cpu() for g in torch.autograd.grad(output, on_gpu, grad.cuda())],
        list(torch.autograd.grad(expected, (query, key, value), grad)),
        atol=within,
        rtol=within,
    )


# ---- sequences laid end to end ----

ENDS = torch.tensor([0, 3, 10, 15], dtype=torch.int32)


def one_by_one(query, key, value, causal):
    parts = []
    for begin, end in pairwise(ENDS.tolist()):
        part = [t[begin:end].transpose(0, 1) for t in (query, key, value)]
        parts.append(scaled_dot_product_attention(*part, is_causal=causal).transpose(0, 1))
    return torch.cat(parts)


@pytest.mark.parametrize("causal", [False, True])
def test_flash_attention_over_sequences_end_to_end(causal):
    def program(query, key, value):
        if not query.is_cuda:
            return one_by_one(query, key, value, causal)
        ends = ENDS.cuda()
        args = (ends, ends, 7, 7, 0.0, causal, False)
        halves = [t.half() for t in (query, key, value)]
        return aten._flash_attention_forward(*halves, *args)[0].to(query.dtype)

    same(program, *(numbers(15, 2, 8) for _ in range(3)), within=1e-2, outputs_within=1e-2)


@pytest.mark.parametrize("mask", [0, 1, 2])
def test_efficient_attention_over_sequences_end_to_end(mask):
    def program(query, key, value):
        if not query.is_cuda:
            return one_by_one(query, key, value, mask > 0)
        ends = ENDS.cuda()
        batch = [t.unsqueeze(0) for t in (query, key, value)]
        args = (None, ends, ends, 7, 7, 0.0, mask, True)
        return aten._efficient_attention_forward(*batch, *args)[0][0]

    same(program, *(numbers(15, 2, 8) for _ in range(3)), within=1e-5, outputs_within=1e-5)


@pytest.mark.parametrize("mask", [0, 1, 2])
def test_efficient_attention_with_a_bias_and_unequal_lengths(mask):
    def program(query, key, value, bias):
        if query.is_cuda:
            args = (bias, None, None, None, None, 0.0, mask, True)
            return aten._efficient_attention_forward(query, key, value, *args)[0]
        future = torch.ones(6, 9).triu(1 if mask == 1 else 1 + 3).bool()
        bias = bias.masked_fill(future, -math.inf) if mask else bias
        first = [t.transpose(1, 2) for t in (query, key, value)]
        return scaled_dot_product_attention(*first, attn_mask=bias).transpose(1, 2)

    tensors = numbers(2, 6, 2, 8), numbers(2, 9, 2, 8), numbers(2, 9, 2, 8), numbers(2, 2, 6, 9)
    same(program, *tensors, within=1e-5, outputs_within=1e-5)


def test_a_sliding_window_sees_its_neighbours_only():
    query, key, value = (torch.randn(1, 6, 1, 8, device="cuda") for _ in range(3))
    args = (None, None, 6, 6, 0.0, False, False)
    windowed = aten._flash_attention_forward(
        *(t.half() for t in (query, key, value)), *args, window_size_left=1, window_size_right=0
    )[0]
    near = torch.ones(6, 6, device="cuda").tril().triu(-1).bool()
    expected = scaled_dot_product_attention(
        *(t.transpose(1, 2) for t in (query, key, value)), attn_mask=near
    )
    torch.testing.assert_close(windowed.float(), expected.transpose(1, 2), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        (SDPBackend.FLASH_ATTENTION, "Flash Attention"),
        (SDPBackend.EFFICIENT_ATTENTION, "Memory Efficient attention"),
        (SDPBackend.CUDNN_ATTENTION, "cuDNN Attention"),
    ],
)
def test_a_backward_without_an_order_is_warned_of(backend, name):
    query = torch.randn(1, 2, 4, 8, device="cuda", dtype=torch.half, requires_grad=True)
    torch.set_warn_always(True)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with (
            sdpa_kernel(backend),
            pytest.warns(UserWarning, match=f"{name} defaults to a non-deterministic algorithm"),
        ):
            scaled_dot_product_attention(query, query, query).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_warn_always(False)


def test_a_dtype_without_an_attention_kernel_is_refused():
    query = torch.randn(1, 2, 8, 8, device="cuda")
    for flash in (aten._scaled_dot_product_flash_attention, aten._flash_attention_forward):
        more = () if flash is aten._scaled_dot_product_flash_attention else (None, None, 8, 8)
        with pytest.raises(RuntimeError, match="FlashAttention only support fp16 and bf16"):
            flash(query, query, query, *more, 0.0, False, False)
    wide = query.double()
    with pytest.raises(RuntimeError, match="Only fp32, half & bf16 supported at the moment"):
        aten._efficient_attention_forward(*[wide] * 3, *[None] * 5, 0.0, 0, True)


@pytest.mark.parametrize("backend", [None, SDPBackend.FLASH_ATTENTION])
def test_nested_tensors_may_be_transposed(backend):
    lengths = (3, 5)
    parts = [[torch.randn(length, 2, 8) for length in lengths] for _ in range(3)]
    nested = [
        torch.nested.nested_tensor(each, device="cuda", dtype=torch.float16).transpose(1, 2)
        for each in parts
    ]
    if backend is None:
        found = scaled_dot_product_attention(*nested)
    else:
        with sdpa_kernel([backend]):  # an H100 has it for nested tensors
            found = scaled_dot_product_attention(*nested)
    for i, part in enumerate(found.unbind()):
        expected = scaled_dot_product_attention(*(each[i].transpose(0, 1) for each in parts))
        torch.testing.assert_close(part.cpu().float(), expected, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("heads", [1, 2])
def test_the_debug_mask_of_flash_attention_says_what_was_dropped(heads):
    few = torch.randn(1, heads, 16, 8, device="cuda", dtype=torch.float16)
    query = few.expand(1, 2, 16, 8).contiguous()
    flash = aten._scaled_dot_product_flash_attention
    output, *_, mask = flash(query, few, few, dropout_p=0.5, return_debug_mask=True)
    assert mask.shape == (1, 2, 128, 128)
    weights = mask[..., :16, :16]
    assert mask.count_nonzero() == weights.count_nonzero()
    expected = (query.float() @ query.float().transpose(-1, -2) / math.sqrt(8)).softmax(-1)
    torch.testing.assert_close(weights.abs().float(), expected, atol=1e-2, rtol=1e-2)
    again = weights.float().clamp(0) * 2 @ query.float()
    torch.testing.assert_close(output.float(), again, atol=5e-2, rtol=5e-2)
