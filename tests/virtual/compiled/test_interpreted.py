"""What kernels get that Triton's interpreter alone computes otherwise, or not at all."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from anydevice.virtual.compiled.interpreter import KernelError

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("seeded")
HALVES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.fixture(scope="module")
def kernels(virtual_gpu: None) -> Any:
    from tests.virtual.compiled import more_kernels

    return more_kernels


def numbers(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, device="cuda")


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_sums_and_maxima_of_halves_are_those_of_their_numbers(
    kernels: Any, dtype: torch.dtype
) -> None:
    x = numbers(32).to(dtype)
    out, sums = torch.empty(3, device="cuda", dtype=dtype), torch.empty_like(x)
    place, odd = torch.empty(2, 1, device="cuda", dtype=torch.int32)
    kernels.along_kernel[(1,)](x, out, place, sums, odd, BLOCK=32)
    assert_close(out, torch.stack([x.sum(), x.max(), x.min()]))
    assert_close(sums, x.cumsum(0), rtol=1e-2, atol=1e-2)
    assert place.item() == x.argmax().item()
    assert odd.item() == (x > 0).sum().item() % 2


def test_a_kernels_own_functions_combine_whole_slices(kernels: Any) -> None:
    x, decay = numbers(4, 64), torch.rand(4, 64, device="cuda")
    most, state = torch.empty(4, device="cuda"), torch.empty_like(x)
    place = torch.empty(4, device="cuda", dtype=torch.int32)
    kernels.own_functions_kernel[(1,)](x, decay, most, place, state, ROWS=4, BLOCK=64)
    expected, last = torch.empty_like(x), torch.zeros(4, device="cuda")
    for at in range(64):
        last = last * decay[:, at] + x[:, at]
        expected[:, at] = last
    assert_close(state, expected)
    assert_close(most, x.max(1).values)
    assert_close(place, x.argmax(1).int())


def test_a_function_that_branches_is_mapped_over_the_elements(kernels: Any) -> None:
    x = numbers(16)
    out = torch.empty_like(x)
    kernels.branching_kernel[(1,)](x, out, BLOCK=16)
    assert_close(out, torch.where(x > 0, x, x / 2))


def test_a_nan_is_passed_on_only_if_the_kernel_asks_for_it(kernels: Any) -> None:
    x, y = torch.tensor([torch.nan, 2.0], device="cuda").split(1)
    out = torch.empty(5, device="cuda")
    kernels.limits_kernel[(1,)](x, y, out)
    assert out.isnan().tolist() == [False, False, False, True, True]
    assert out[:3].tolist() == [2, 2, -1]


def test_bfloat16_is_added_atomically(kernels: Any) -> None:
    x = numbers(16).bfloat16()
    total = torch.zeros(8, device="cuda", dtype=torch.bfloat16)
    kernels.adding_kernel[(1,)](x, total, BLOCK=16)
    assert_close(total, x[0::2] + x[1::2])


def test_a_shift_leaves_its_operands_as_they_are(kernels: Any) -> None:
    x = torch.tensor([-1, -8, -(1 << 62), 2], device="cuda")
    by = torch.tensor([0, 1, 63, 1], device="cuda", dtype=torch.uint64)
    out = torch.empty_like(x)
    kernels.shifting_kernel[(1,)](x, by, out, BLOCK=4)
    assert out.tolist() == [-1, -4, -1, 1]
    assert by.cpu().tolist() == [each + (1 << 63) for each in (0, 1, 63, 1)]


def test_what_a_kernel_asks_of_the_card(kernels: Any) -> None:
    import triton.language as tl

    out = torch.empty(4, device="cuda", dtype=torch.int32)
    kernels.of_the_card_kernel[(1,)](out, tl.extra.cuda.num_warps, num_warps=8)
    assert out.tolist() == [0, 256, 8, 1]


def test_an_assert_holds_where_kernels_are_debugged(kernels: Any) -> None:
    x = torch.ones(8, device="cuda")
    kernels.asserting_kernel[(1,)](x, BLOCK=8)
    with pytest.raises(KernelError, match="every number is less than one"):
        kernels.asserting_kernel[(1,)](x, BLOCK=8, debug=True)


# ---- inline PTX ----


def test_words_are_shifted_through_each_other(kernels: Any) -> None:
    x, y = torch.randint(-(2**31), 2**31, (2, 64), device="cuda", dtype=torch.int32)
    out = torch.empty_like(x)
    kernels.funnel_kernel[(1,)](x, y, out, BLOCK=64)
    low, high = (each.long() & 0xFFFFFFFF for each in (x, y))
    assert_close(out, (((high << 32 | low) << 17) >> 32).int())


def test_bytes_share_a_register(kernels: Any) -> None:
    x = torch.randint(0, 256, (64,), device="cuda", dtype=torch.uint8)
    out = torch.empty_like(x)
    kernels.packed_kernel[(1,)](x, out, BLOCK=64)
    assert_close(out, x << 3)


def test_instructions_with_a_guard_leave_the_other_elements(kernels: Any) -> None:
    x = torch.linspace(-30, 40, 64, device="cuda")
    out = torch.empty_like(x)
    kernels.softplus_kernel[(1,)](x, out, BLOCK=64)
    assert_close(out, torch.nn.functional.softplus(x), rtol=1e-5, atol=1e-6)


X, Y = -5, 300
PTX = {
    "sub.s32 $0, $2, $3; sub.s32 $1, $3, $2;": (X - Y, Y - X),
    "min.s32 $0, $2, $3; max.u32 $1, $2, $3;": (X, X),
    "prmt.b32 $0, $2, $3, 0x5410; lop3.b32 $1, $2, $3, 0, 0x3c;": (300 << 16 | 0xFFFB, X ^ Y),
    "mul.hi.s32 $0, $2, $3; mad.lo.s32 $1, $2, $3, 7;": (-1, X * Y + 7),
    "bfe.s32 $0, $2, 0, 4; bfe.u32 $1, $3, 2, 6;": (-5, 300 >> 2 & 63),
    "shr.s32 $0, $2, 1; shr.u32 $1, $3, 40;": (-3, 0),
    "{.reg .b16 a, b; mov.b32 {a, b}, $3; mov.b32 $0, {b, a}; not.b32 $1, $2;}": (300 << 16, 4),
    "{.reg .pred p; setp.lt.s32 p, $2, $3; selp.b32 $0, 1, 2, p; abs.s32 $1, $2;}": (1, 5),
    "cvt.rn.f32.s32 $0, $2; cvt.rzi.s32.f32 $1, $0;": (-1063256064, -5),  # the bits of -5.0
    "popc.b32 $0, $3; and.b32 $1, $2, 0b1010;": (4, 10),
}


@pytest.mark.parametrize("text", PTX)
def test_an_instruction_has_ptxs_result(kernels: Any, text: str) -> None:
    x, y = (torch.full((4,), each, device="cuda", dtype=torch.int32) for each in (X, Y))
    first, second = torch.empty(2, 4, device="cuda", dtype=torch.int32)
    kernels.asm_kernel[(1,)](x, y, first, second, text, BLOCK=4)
    assert (first[0].item(), second[0].item()) == PTX[text]


def test_an_unknown_instruction_is_named_with_the_kernels_line(kernels: Any) -> None:
    x = torch.ones(4, device="cuda", dtype=torch.int32)
    with pytest.raises(KernelError, match=r"more_kernels.py:\d+.* PTX instruction dp4a.s32.s32"):
        kernels.asm_kernel[(1,)](x, x, x, x, "dp4a.s32.s32 $0, $2, $3, $2;", BLOCK=4)


def test_a_sum_of_small_integers_wraps_around(kernels: Any) -> None:
    x = torch.full((32,), 7, device="cuda", dtype=torch.int8)
    out = torch.zeros(1, device="cuda", dtype=torch.int8)
    kernels.small_integers_kernel[(1,)](x, out, BLOCK=32)
    assert out.item() == 7 * 32 - 256


def test_a_maximum_and_its_place_skip_nans(kernels: Any) -> None:
    x = torch.tensor([torch.nan, 6.0, 8.0, torch.nan], device="cuda")
    values, places = torch.empty(2, device="cuda"), torch.empty(2, device="cuda", dtype=torch.int32)
    kernels.extremes_kernel[(1,)](x, values, places, BLOCK=4)
    assert (values.tolist(), places.tolist()) == ([8.0, 6.0], [2, 1])


def test_a_loop_with_a_condition_ends(kernels: Any) -> None:
    out = torch.zeros(1, device="cuda", dtype=torch.int32)
    kernels.counting_kernel[(1,)](out, 5)
    assert out.item() == 6


def test_a_constant_has_its_value_and_its_type(kernels: Any) -> None:
    out = torch.zeros(1, device="cuda", dtype=torch.int32)
    kernels.described_kernel[(1,)](out, SIZE=21)
    assert out.item() == 42


def test_functions_of_the_language_may_have_other_names(kernels: Any) -> None:
    x, places = numbers(16), torch.randperm(16, device="cuda").int()
    out = torch.empty_like(x)
    kernels.by_other_names_kernel[(1,)](x, places, out, BLOCK=16)
    assert_close(out, x[places.long()])


def test_a_scalar_masks_a_whole_row(kernels: Any) -> None:
    x = numbers(5, 12)
    out = torch.empty_like(x)
    kernels.masked_rows_kernel[(1,)](x, out, 5, WIDTH=12, BLOCK=16)
    assert_close(out, x)
