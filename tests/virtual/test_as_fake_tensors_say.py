"""Shapes, side results and warnings of ops are those that PyTorch's fake tensors have for CUDA."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_utils import CrossRefFakeMode

pytestmark = pytest.mark.usefixtures("seeded")


def bags(mode, last=False, padding=-1, training=True):
    weight, indices = torch.randn(5, 3, device="cuda"), torch.tensor([0, 2, 2, 4, 1]).cuda()
    offsets = torch.tensor([0, 2, 5]).cuda()
    aten = torch.ops.aten
    function = aten._embedding_bag if training else aten._embedding_bag_forward_only
    return function(weight, indices, offsets, False, mode, False, None, last, padding)


def matrices(*shape):
    return torch.randn(*shape, device="cuda")


def unpooled():
    x = matrices(1, 2, 4, 4).to(memory_format=torch.channels_last)
    return F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)


def batch_norm():
    x, ones = torch.randn(2, 3, 4, 4, device="cuda"), torch.ones(3, device="cuda")
    return torch.ops.aten._batch_norm_with_update(x, ones, ones, ones * 0, ones, 0.1, 1e-5)


@pytest.mark.parametrize(
    "compute",
    [
        lambda: F.logsigmoid(torch.randn(4, 5, device="cuda")),
        *[lambda mode=mode: bags(mode) for mode in range(3)],
        *[lambda mode=mode: bags(mode, last=True, training=False) for mode in range(3)],
        batch_norm,
        *[lambda full=full: torch.linalg.svd(matrices(2, 3, 4), full) for full in (True, False)],
        unpooled,
        lambda: torch.linalg.eig(matrices(2, 3, 3)),
        lambda: torch.linalg.lu_factor(matrices(2, 3, 4), pivot=False),
    ],
)
def test_results_lie_as_those_of_a_card(compute):
    with CrossRefFakeMode(check_aliasing=False):  # it raises if strides or shapes are others
        compute()


def test_outputs_of_linear_algebra_lie_in_rows_or_as_they_did():
    for function, shape in ((torch.linalg.svd, (2, 3, 3)), (torch.linalg.eig, (3, 3))):
        a = matrices(*shape)
        fresh = [torch.empty(0, device="cuda", dtype=t.dtype) for t in function(a)]
        columns = [t.mT.contiguous().mT if t.dim() > 1 else t for t in function(a)]
        strides = [t.stride() for t in columns]
        function(a, out=fresh)
        assert fresh[-1].is_contiguous()
        function(a, out=columns)
        assert [t.stride() for t in columns] == strides
        assert torch.equal(fresh[-1], columns[-1])


def test_a_bag_says_where_its_indices_are():
    _, bag_of, sizes, largest = bags(0)
    assert bag_of.tolist() == [0, 0, 1, 1, 1]
    assert sizes.tolist() == [2, 3, 0]
    assert largest.numel() == 0
    assert bags(0, last=True, padding=2)[2].tolist() == [1, 2, 0]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("last", [False, True])
def test_gradients_of_bags_are_those_of_the_cpu(mode, last):
    weight, indices = torch.randn(5, 3), torch.tensor([0, 2, 2, 4, 1])
    gradients = []
    for device in ("cpu", "cuda"):
        leaf = weight.to(device, copy=True).requires_grad_()
        offsets = torch.tensor([0, 2, 2, 5] if last else [0, 2, 2], device=device)
        F.embedding_bag(
            indices.to(device), leaf, offsets, mode=mode, include_last_offset=last
        ).square().sum().backward()
        gradients.append(leaf.grad.cpu())
    assert torch.equal(*gradients)


def test_bags_have_a_gradient_if_indices_and_offsets_are_of_different_types():
    weight, each = matrices(5, 3).requires_grad_(), torch.ones(5, device="cuda", requires_grad=True)
    indices, offsets = torch.tensor([0, 2, 2, 4, 1]).cuda(), torch.tensor([0, 2, 5]).cuda()
    for first, second in ((indices.int(), offsets), (indices, offsets.int())):
        out = F.embedding_bag(first, weight, second, mode="sum", per_sample_weights=each)
        gradients = torch.autograd.grad(out.sum(), (weight, each))
        assert gradients[0][:, 0].tolist() == [1, 1, 2, 0, 1]
        assert torch.allclose(gradients[1], weight.detach().sum(1)[indices])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_log_sigmoid_keeps_no_buffer_and_its_gradient_is_right(dtype):
    x = torch.linspace(-9, 9, 1024, device="cuda", dtype=dtype, requires_grad=True)
    before = torch.cuda.memory_allocated()
    y = F.logsigmoid(x)
    assert torch.cuda.memory_allocated() - before == y.nbytes
    y.sum().backward()
    exact = torch.sigmoid(-x.detach().double())
    assert torch.allclose(x.grad.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-7)


@pytest.mark.parametrize(
    ("compute", "warns"),
    [
        (lambda x, out: torch._C._nn.log_sigmoid(x, out=out), True),
        (lambda x, out: torch.eye(4, out=out), False),
        (lambda x, out: torch.logcumsumexp(x, 0, out=out), False),
    ],
)
def test_an_output_is_resized_with_the_warnings_of_a_card(compute, warns):
    out = torch.empty(3, device="cuda")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        compute(torch.randn(4, 4, device="cuda"), out)
    assert out.shape == (4, 4)
    assert len(said) == warns


def test_log_sigmoid_refuses_an_output_of_another_dtype():
    out = torch.empty(3, device="cuda", dtype=torch.double)
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Double"):
        torch._C._nn.log_sigmoid(torch.ones(3, device="cuda"), out=out)


def test_batch_norm_leaves_what_shares_bytes_with_its_running_statistics():
    mean, variance = torch.zeros(3, device="cuda"), torch.ones(3, device="cuda")
    lazy = mean._lazy_clone(), variance._lazy_clone()
    F.batch_norm(torch.randn(8, 3, device="cuda") + 5, *lazy, training=True)
    assert mean.tolist() == [0, 0, 0]
    assert variance.tolist() == [1, 1, 1]
    assert (lazy[0] > 0).all()


def test_jiterator_refuses_a_wrapper_without_memory():
    wrapper = torch._subclasses.FakeTensorMode().from_tensor(torch.ones(3, device="cuda"))
    double = torch.cuda.jiterator._create_jit_fn("template <typename T> T f(T x) { return x + x; }")
    with pytest.raises(torch.AcceleratorError, match="an illegal memory access"):
        double(wrapper)
