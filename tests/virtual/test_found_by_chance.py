"""What random programs found (tests/conformance/random_programs), shrunk to what matters."""

import gc

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")


def test_an_out_has_no_say_in_the_dtype_that_has_no_kernel(virtual_gpu):
    given = torch.ones(2, 3, 4, dtype=torch.bool, device="cuda")
    for out in (torch.zeros(3, 3), torch.zeros(3, 3, device="cuda")):
        same = given.to(out.device)
        with pytest.raises(NotImplementedError, match="not implemented for 'Bool'"):
            torch.gcd(same, same, out=out)
    assert (out.fill_(2).cpu() == 2).all()


def test_least_squares_has_the_drivers_of_cuda(virtual_gpu):
    torch.manual_seed(0)
    a, b = torch.randn(5, 3, device="cuda"), torch.randn(5, 2, device="cuda")
    with pytest.raises(RuntimeError, match="other than `gels` is not supported on CUDA"):
        torch.linalg.lstsq(a, b, driver="gelsy")
    found, named = torch.linalg.lstsq(a, b), torch.linalg.lstsq(a, b, driver="GELS")
    expected = torch.linalg.lstsq(a.cpu(), b.cpu(), driver="gels")
    for ours, theirs, cpus in zip(found, named, expected, strict=True):
        assert ours.shape == cpus.shape
        assert torch.equal(ours.cpu(), cpus)
        assert torch.equal(ours, theirs)


def test_an_alias_is_used_again_for_tensors_of_all_kinds(virtual_gpu):
    """Sizes, dtype, sharing and the version of one call's tensors are not the next one's."""
    wide = torch.arange(24.0, device="cuda").reshape(2, 3, 4)
    views = [
        wide,
        wide.mT,
        wide[..., ::2],
        wide.expand(2, 2, 3, 4),
        wide.to(torch.complex64).conj(),
    ]
    for _ in range(3):
        for view in views:
            assert torch.equal((view + view).cpu(), view.cpu() + view.cpu())
    with torch.inference_mode():
        made = wide + 1
        made.mul_(2)
    assert made.is_inference()
    version = wide._version
    wide.add_(1)
    assert wide._version == version + 1
    assert torch.equal(wide[0].unsqueeze_(0).cpu(), wide[:1].cpu())


def test_nothing_stays_allocated_that_an_alias_held(virtual_gpu):
    gc.collect()  # what earlier tests left may go at any time
    before = torch.cuda.memory_allocated()
    for size in (1, 1000, 100_000):
        a = torch.ones(size, device="cuda")
        a = torch.add(a, a).mul_(2).view(-1).sum()
        del a
        assert torch.cuda.memory_allocated() == before


def test_lists_written_to_in_place_count_a_version(virtual_gpu):
    x = [torch.ones(3, device="cuda"), torch.ones(2, device="cuda")]
    for write in (torch._foreach_neg_, torch._foreach_zero_, lambda x: torch._foreach_add_(x, 1)):
        before = [tensor._version for tensor in x]
        write(x)
        assert [tensor._version - was for tensor, was in zip(x, before, strict=True)] == [1, 1]
    product = torch.ones(2, device="cuda", requires_grad=True) * x[1]
    torch._foreach_mul_(x, 2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_statistics_with_strides_are_read_right_in_backward(virtual_gpu):
    torch.manual_seed(0)
    x, mean = torch.randn(4, 3), torch.randn(3)
    wide = torch.tensor([1.0, -9, 2, -9, 3, -9])  # the CPU's own backward reads the -9 too
    expected, got = x.clone().requires_grad_(), x.to("cuda").requires_grad_()
    functional = torch.nn.functional
    functional.batch_norm(expected, mean, wide[::2].contiguous()).sum().backward()
    functional.batch_norm(got, mean.to("cuda"), wide.to("cuda")[::2]).sum().backward()
    torch.testing.assert_close(got.grad.cpu(), expected.grad)
