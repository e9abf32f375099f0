"""Half precision where the CPU's own kernels are slow in it: computed in float32, rounded once."""

import pytest
import torch
from torch.nn import functional as F

pytestmark = pytest.mark.usefixtures("seeded")

CALLS = {
    "convolution": lambda x, w: F.conv2d(x, w, padding=1),
    "transposed": lambda x, w: F.conv_transpose2d(x, w, stride=2),
    "product": lambda x, w: x.flatten(1) @ x.flatten(1).t(),
    "batches": lambda x, w: x.flatten(0, 1) @ x.flatten(0, 1).transpose(1, 2),
    "vector": lambda x, w: x.flatten(1) @ w.flatten()[:1].expand(1024).contiguous(),
    "dot": lambda x, w: x.flatten().dot(x.flatten()),
    "norm": lambda x, w: torch.linalg.vector_norm(x, dim=1),
    "power": lambda x, w: x.square() + x.pow(3),
    "tanh": lambda x, w: x.tanh(),
    "sorted": lambda x, w: x.sort().values,
    "cross entropy": lambda x, w: F.binary_cross_entropy(x.sigmoid(), x.sigmoid()),
}


def leaves(dtype, device):
    torch.manual_seed(0)
    shapes = (2, 4, 16, 16), (4, 4, 3, 3)
    return [torch.randn(shape).to(dtype).to(device).requires_grad_() for shape in shapes]


def with_gradients(call, inputs):
    result = call(*inputs)
    return [result, *torch.autograd.grad(result.sum(), inputs, allow_unused=True)]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_float32_rounded(call, dtype):
    narrow = with_gradients(call, leaves(dtype, "cuda"))
    wide = [each.detach().float().requires_grad_() for each in leaves(dtype, "cpu")]
    step = torch.finfo(dtype).eps
    for found, expected in zip(narrow, with_gradients(call, wide), strict=True):
        if expected is None:
            assert found is None
            continue
        assert found.dtype == dtype
        scale = expected.abs().max().item()
        difference = (found.cpu().float() - expected).abs().max().item()
        assert difference <= 8 * step * scale


def test_types_that_a_card_does_not_mix_stay_refused():
    x, w = leaves(torch.float16, "cuda")
    types = r"Input type \(torch.cuda.HalfTensor\) and weight type \(torch.cuda.FloatTensor\)"
    with pytest.raises(RuntimeError, match=types + " should be the same"):
        F.conv2d(x, w.float())
    with pytest.raises(RuntimeError, match="same dtype"):
        x.flatten(1) @ x.flatten(1).t().float()


def test_results_go_to_where_they_are_asked_for():
    x = torch.randn(8, device="cuda", dtype=torch.float16)
    out = torch.empty(0, device="cuda", dtype=torch.float16)
    assert torch.tanh(x, out=out) is out
    torch.testing.assert_close(out, x.float().tanh().half())
    address = x.data_ptr()
    assert x.tanh_() is x
    assert x.data_ptr() == address
    torch.testing.assert_close(x, out)
