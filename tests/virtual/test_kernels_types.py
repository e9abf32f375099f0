"""Types and choices that CUDA's kernels have and the CPU's lack."""

import pytest
import torch
from torch.nn import functional as F

pytestmark = pytest.mark.usefixtures("seeded")

HALVES = [torch.float16, torch.bfloat16]


def rounded_once(function, *inputs, dtype):
    """What `function` gives for halves is what it gives for their values in float, rounded."""
    narrow = [t.to(dtype) if t.is_floating_point() else t for t in inputs]
    wide = [t.float() if t.is_floating_point() else t for t in narrow]
    found = function(*(t.cuda() for t in narrow))
    assert found.dtype == dtype
    torch.testing.assert_close(found.cpu(), function(*wide).to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", HALVES)
def test_layers_and_losses_of_halves(dtype):
    rounded_once(lambda x: F.avg_pool3d(x, 2), torch.randn(1, 2, 4, 4, 4), dtype=dtype)
    rounded_once(F.multi_margin_loss, torch.randn(4, 5), torch.tensor([0, 1, 2, 3]), dtype=dtype)
    rounded_once(
        F.multilabel_margin_loss, torch.randn(2, 4), torch.tensor([[3, 0, -1, 1]] * 2), dtype=dtype
    )
    for mode in ("bilinear", "bicubic"):
        rounded_once(
            lambda x, mode=mode: F.interpolate(x, size=4, mode=mode, antialias=True),
            torch.rand(1, 1, 8, 8),
            dtype=dtype,
        )


@pytest.mark.parametrize("dtype", HALVES)
def test_their_gradients_are_halves_too(dtype):
    x = torch.randn(4, 5, device="cuda", dtype=dtype, requires_grad=True)
    F.multi_margin_loss(x, torch.tensor([0, 1, 2, 3], device="cuda")).backward()
    assert x.grad.dtype == dtype
    assert x.grad.abs().sum() > 0


def test_rounding_and_polygamma_of_halves():
    x = torch.rand(4, 4) + 1
    rounded_once(lambda x: torch.round(x, decimals=3), x, dtype=torch.float16)
    rounded_once(lambda x: torch.polygamma(1, x), x, dtype=torch.float16)
    in_place = x.half().cuda()
    assert in_place.round_(decimals=1) is in_place
    torch.testing.assert_close(in_place.cpu(), torch.round(x.half().float(), decimals=1).half())


def test_fourier_transforms_of_halves():
    x = torch.randn(4, 8).half()
    there = torch.fft.rfft(x.cuda())
    assert there.dtype == torch.complex32
    torch.testing.assert_close(
        there.cpu().to(torch.complex64), torch.fft.rfft(x.float()), rtol=1e-2, atol=1e-2
    )
    back = torch.fft.irfft(there)
    assert back.dtype == torch.float16
    torch.testing.assert_close(back.cpu(), x, rtol=1e-2, atol=1e-2)


def test_fourier_transforms_of_bfloat16_are_complex64():
    x = torch.randn(4, 8, dtype=torch.bfloat16)  # torch.fft takes it since PyTorch 2.14
    there = torch.ops.aten._fft_r2c(x.cuda(), [1], 0, True)
    assert there.dtype == torch.complex64
    torch.testing.assert_close(there.cpu(), torch.fft.rfft(x.float()), rtol=1e-2, atol=1e-2)


def test_fourier_transforms_of_halves_want_powers_of_two():
    with pytest.raises(RuntimeError, match="cuFFT only supports dimensions whose sizes are powers"):
        torch.fft.rfft(torch.randn(4, 6, dtype=torch.float16, device="cuda"))


def test_histograms_of_whole_numbers():
    found = torch.histc(torch.tensor([0, 1, 1, 4], device="cuda"), 5)
    assert found.dtype == torch.int64
    assert found.tolist() == [1, 2, 0, 0, 1]


def test_sums_and_sizes_of_other_types():
    numbers = torch.tensor([1 + 2j, complex("nan"), 3], device="cuda")
    assert torch.nansum(numbers).item() == 4 + 2j
    assert torch.abs(torch.tensor([True, False], device="cuda")).tolist() == [True, False]
    assert torch.trace(torch.ones(3, 3, dtype=torch.bool, device="cuda")).item() == 3


@pytest.mark.parametrize("driver", ["gesvd", "gesvdj", "gesvda"])
def test_the_svds_driver_may_be_chosen(driver):
    matrix = torch.randn(4, 3)
    u, s, vh = torch.linalg.svd(matrix.cuda(), full_matrices=False, driver=driver)
    torch.testing.assert_close((u * s @ vh).cpu(), matrix)


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16])
def test_sparse_gradients_of_halves_are_summed(dtype):
    table = torch.nn.Embedding(5, 2, sparse=True, device="cuda", dtype=dtype)
    for _ in range(2):
        table(torch.tensor([1, 3, 1], device="cuda")).sum().backward()
    assert table.weight.grad.dtype == dtype
    assert table.weight.grad.to_dense().tolist() == [[0, 0], [4, 4], [0, 0], [2, 2], [0, 0]]
    table.weight.grad.add_(table.weight.grad)
    assert table.weight.grad.to_dense()[1].tolist() == [8, 8]


def test_an_unknown_driver_is_refused():
    with pytest.raises(RuntimeError, match="unknown svd driver magic"):
        torch.linalg.svd(torch.randn(3, 3, device="cuda"), driver="magic")


@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 3), (3, 5), (0, 3, 3)])
def test_lu_without_pivoting(shape):
    matrix = (torch.randn(shape) + 4 * torch.eye(*shape[-2:])).cuda()
    permutation, lower, upper = torch.linalg.lu(matrix, pivot=False)
    assert permutation.shape == (0,)
    torch.testing.assert_close(lower @ upper, matrix)
    factors, pivots = torch.linalg.lu_factor(matrix, pivot=False)
    assert (pivots == torch.arange(1, min(shape[-2:]) + 1, device="cuda")).all()
    size = min(shape[-2:])
    torch.testing.assert_close(factors[..., :size, :].triu(), upper)


def test_numbers_told_by_a_key():
    random = pytest.importorskip("torch.func._random")
    key = random.key(7, device="cuda")
    assert torch.equal(random.uniform(key, (9,)), random.uniform(key, (9,)))
    assert torch.equal(random.split(key, 3)[2], random.fold_in(key, 2))
    one_each = random.normal(random.split(key, 2).unsqueeze(1), (2, 5))
    for row, own in zip(one_each, random.split(key, 2), strict=True):
        assert torch.equal(row, random.normal(own, (5,)))
    many = random.normal(key, (10_000,))
    assert abs(many.mean()) < 0.05
    assert abs(many.std() - 1) < 0.05


def test_truth_values_have_medians_sums_and_magnitudes():
    x = torch.tensor([True, False, True], device="cuda")
    assert torch.median(x).item() is True
    assert torch.nanmedian(~x).item() is False
    assert [t.tolist() for t in x.median(0)] == [True, x.long().median(0).indices.item()]
    (each,) = torch._foreach_abs([x])
    assert each.tolist() == x.tolist()
    torch._foreach_abs_([x])
    both = torch.tensor([0, 0], device="cuda")
    summed = (~x).scatter_reduce(0, both, x[:2], "sum")
    assert summed.tolist() == [True, True, False]
    with pytest.raises(NotImplementedError, match=r"scatter_gather_base_kernel_func.*'Bool'"):
        x.scatter_reduce(0, both, x[:2], "prod")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_whole_numbers_are_unpooled(dtype):
    large = 2**62 + 1 if dtype is torch.int64 else 7
    x = torch.tensor([[[large, 2], [3, 4]]], dtype=dtype, device="cuda")
    places = torch.tensor([[[0, 3], [8, 15]]], device="cuda")
    found = F.max_unpool2d(x, places, 2)
    assert found.dtype is dtype
    assert found.flatten()[places.flatten()].tolist() == [large, 2, 3, 4]
    assert found.count_nonzero() == 4
    assert F.max_unpool3d(x[None], places[None], (1, 2, 2)).flatten().equal(found.flatten())


def test_the_identity_has_half_precision_complex_numbers():
    assert torch.equal(torch.eye(2, 3, dtype=torch.complex32, device="cuda").real.cpu(),
                       torch.eye(2, 3, dtype=torch.half))  # fmt: skip
