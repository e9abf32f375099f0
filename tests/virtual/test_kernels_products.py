"""Products that only CUDA has: wide results, 8-bit floats, 4-bit weights, 2:4 sparsity."""

import pytest
import torch
from torch import nn
from torch.sparse import SparseSemiStructuredTensor, to_sparse_semi_structured
from torch.sparse._semi_structured_conversions import sparse_semi_structured_from_dense_cutlass

pytestmark = pytest.mark.usefixtures("seeded")

FP8 = torch.float8_e4m3fn


def exactly(found, expected):
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0)


# ---- half in, float out ----


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_of_halves_are_summed_and_kept_in_float(dtype):
    left, right, added = torch.randn(8, 16), torch.randn(16, 8), torch.randn(8, 8)
    left, right, added = left.to(dtype), right.to(dtype), added.to(dtype)
    wide = {"out_dtype": torch.float32}
    exactly(torch.mm(left.cuda(), right.cuda(), **wide), left.float() @ right.float())
    exactly(
        torch.addmm(added.cuda(), left.cuda(), right.cuda(), **wide),
        torch.addmm(added.float(), left.float(), right.float()),
    )
    left, right, added = left[None], right[None], added[None]
    exactly(torch.bmm(left.cuda(), right.cuda(), **wide), left.float() @ right.float())
    exactly(
        torch.baddbmm(added.cuda(), left.cuda(), right.cuda(), **wide),
        torch.baddbmm(added.float(), left.float(), right.float()),
    )


# ---- 8-bit floats ----


@pytest.mark.parametrize("scales", ["tensor", "rows", "blocks"])
def test_scaled_products_of_8_bit_floats(scales):
    left, right = torch.randn(128, 256).to(FP8), torch.randn(128, 256).to(FP8).t()
    left_shape, right_shape = {
        "tensor": ((), ()),
        "rows": ((128, 1), (1, 128)),
        "blocks": ((128, 2), (2, 1)),
    }[scales]
    left_scale, right_scale = torch.rand(left_shape), torch.rand(right_shape)
    found = torch._scaled_mm(
        left.cuda(), right.cuda(), left_scale.cuda(), right_scale.cuda(), out_dtype=torch.bfloat16
    )

    def full(scale, like):
        if scale.dim() == 2:
            for dim in (0, 1):
                scale = scale.repeat_interleave(like.size(dim) // scale.size(dim), dim)
        return like.float() * scale

    expected = full(left_scale, left) @ full(right_scale, right)
    torch.testing.assert_close(found.cpu(), expected.bfloat16())


def test_what_no_card_multiplies_of_8_bit_floats_is_refused():
    one = torch.ones((), device="cuda")

    def product(rows, inner, columns, dtype=FP8):
        left, right = torch.ones(rows, inner).to(dtype), torch.ones(columns, inner).to(dtype)
        return torch._scaled_mm(left.cuda(), right.cuda().t(), one, one, out_dtype=torch.bfloat16)

    assert product(5, 16, 32).shape == (5, 32)
    with pytest.raises(RuntimeError, match=r"mat1 to be divisible by 16 .* \(16x8\)"):
        product(16, 8, 16)
    with pytest.raises(RuntimeError, match=r"mat2 shape \(16x8\) must be divisible by 16"):
        product(16, 16, 8)
    with pytest.raises(ValueError, match="two Float8_e5m2 matrices is not supported"):
        product(16, 16, 16, torch.float8_e5m2)


def test_scaled_products_by_recipe():
    left, right = torch.randn(32, 64).to(FP8), torch.randn(48, 64).to(FP8).t()
    left_scale, right_scale = torch.rand(32, 1), torch.rand(1, 48)
    row_wise = torch.nn.functional.ScalingType.RowWise
    found = torch.nn.functional.scaled_mm(
        left.cuda(),
        right.cuda(),
        left_scale.cuda(),
        row_wise,
        right_scale.cuda(),
        row_wise,
        output_dtype=torch.bfloat16,
    )
    expected = (left.float() * left_scale) @ (right.float() * right_scale)
    torch.testing.assert_close(found.cpu(), expected.bfloat16())


def test_grouped_products_of_8_bit_floats():
    left, right = torch.randn(32, 64).to(FP8), torch.randn(4, 16, 64).to(FP8).transpose(1, 2)
    left_scale, right_scale = torch.rand(32), torch.rand(4, 16)
    ends = torch.tensor([8, 16, 24, 32], dtype=torch.int32)
    found = torch._scaled_grouped_mm(
        *(t.cuda() for t in (left, right, left_scale, right_scale, ends)), out_dtype=torch.bfloat16
    )
    wide = (left.float() * left_scale[:, None]).view(4, 8, 64)
    expected = wide @ (right.float() * right_scale[:, None])
    torch.testing.assert_close(found.cpu(), expected.view(32, 16).bfloat16())


# ---- 4-bit weights ----


@pytest.mark.parametrize("inner_tiles", [2, 4, 8])
@pytest.mark.parametrize("group", [32, 128])
def test_products_with_4_bit_weights(inner_tiles, group):
    weight, x = torch.randint(16, (16, 256)), torch.randn(5, 256).bfloat16()
    scales = torch.randn(256 // group, 16, 2).bfloat16()
    two_in_a_byte = (weight[:, ::2] * 16 + weight[:, 1::2]).to(torch.uint8)
    packed = torch._convert_weight_to_int4pack(two_in_a_byte.cuda(), inner_tiles)
    assert packed.shape == (2, 16 // inner_tiles, 32, inner_tiles // 2)
    found = torch._weight_int4pack_mm(x.cuda(), packed, group, scales.cuda())
    scale, zero = scales.float().repeat_interleave(group, 0).permute(2, 1, 0)
    dense = ((weight - 8) * scale + zero).bfloat16()
    torch.testing.assert_close(found.cpu(), (x.float() @ dense.float().t()).bfloat16())


# ---- 2:4 sparsity ----


def two_of_four(dtype):
    dense = torch.randint(1, 5, (64, 128))
    kept = torch.tensor([0, 1, 0, 1, 1, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 1]).repeat(64, 8)
    every_other = torch.tensor([0, 1]).repeat(64, 64)
    return (dense * (every_other if dtype == torch.float32 else kept)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int8])
def test_semi_structured_matrices(dtype):
    dense, right = two_of_four(dtype), torch.randint(-3, 4, (128, 32)).to(dtype)
    values, metadata = torch._to_sparse_semi_structured(dense.cuda())
    expected_values, expected_metadata = sparse_semi_structured_from_dense_cutlass(dense)
    exactly(values, expected_values)
    exactly(metadata, expected_metadata)
    wide = {"out_dtype": torch.int32} if dtype == torch.int8 else {}
    product = (dense.double() @ right.double()).to(wide.get("out_dtype", dtype))
    exactly(torch._sparse_semi_structured_mm(values, metadata, right.cuda(), **wide), product)
    compressed = torch._cslt_compress(dense.cuda())
    exactly(torch._cslt_sparse_mm(compressed, right.cuda(), **wide), product)


def test_a_linear_layer_with_a_semi_structured_weight(monkeypatch):
    monkeypatch.setattr(SparseSemiStructuredTensor, "_FORCE_CUTLASS", True)
    layer = nn.Linear(128, 64).half().cuda().eval()
    x = torch.randn(32, 128).half().cuda()
    with torch.no_grad():
        layer.weight.mul_(two_of_four(torch.float16).cuda() != 0)
        expected = layer(x)
        layer.weight = nn.Parameter(to_sparse_semi_structured(layer.weight))
        torch.testing.assert_close(layer(x), expected)


# ---- compressed sparse rows ----


def test_batches_of_sparse_matrices():
    dense = torch.randn(3, 4, 5) * (torch.rand(4, 5) > 0.5)
    right, added = torch.randn(3, 5, 2), torch.randn(3, 4, 2)
    rows = dense.to_sparse_csr().cuda()
    torch.testing.assert_close(torch.bmm(rows, right.cuda()).cpu(), dense @ right)
    found = torch.baddbmm(added.cuda(), rows, right.cuda(), beta=2, alpha=3)
    torch.testing.assert_close(found.cpu(), 2 * added + 3 * dense @ right)


def test_solving_with_a_sparse_matrix():
    matrix = torch.eye(4) * 2 + torch.ones(4, 4).triu(3)
    found = torch.sparse.spsolve(matrix.to_sparse_csr().cuda(), torch.ones(4).cuda())
    torch.testing.assert_close(found.cpu(), torch.linalg.solve(matrix, torch.ones(4)))
