"""The comparison itself sees every kind of difference, so the suite cannot pass by accident."""

import pytest
import torch

from tests.conformance.agree import DisagreementError, agree
from tests.conformance.compare import Raised, difference, sharing
from tests.conformance.twins import twins


def differs(expected, got, **how):
    return difference(expected, got, device="cpu", **how)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64])
def test_equal_tensors_do_not_differ(dtype):
    x = torch.arange(6).to(dtype)
    assert differs(x, x.clone()) is None


def test_the_last_bit_is_seen_and_named():
    x = torch.ones(2, 3)
    y = x.clone()
    y[1, 2] = torch.nextafter(y[1, 2], torch.tensor(2.0))
    assert "1 of 6 elements differ, first at [1, 2]: 1.0 on the CPU" in differs(x, y)
    assert differs(x, y, close=True) is None


def test_a_negative_zero_is_not_a_zero():
    assert differs(torch.tensor([0.0]), torch.tensor([-0.0]))


def test_one_nan_is_as_good_as_another():
    assert differs(torch.tensor([float("nan")]), torch.tensor([-float("nan")])) is None


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (torch.ones(2, 3, dtype=torch.float64), "dtype"),
        (torch.ones(3, 2), "shape"),
        (torch.ones(3, 2).t(), "stride"),
        (torch.ones(2, 3).to_sparse(), "layout"),
        (torch.ones(2, 3, requires_grad=True), "requires_grad"),
        (torch.ones(2, 3, device="meta"), "meta"),
        (1.0, "expected a torch.float32 tensor"),
        (Raised("RuntimeError", "no"), "RuntimeError: no"),
    ],
)
def test_everything_but_the_numbers_counts_too(other, word):
    assert word in differs(torch.ones(2, 3), other)


def test_an_answer_left_on_the_cpu_is_a_difference():
    assert difference(torch.ones(2), torch.ones(2)) == "the result is on cpu"


def test_two_errors_are_equal_but_for_the_device_they_name():
    assert differs(Raised.by(ValueError("on CPU")), Raised.by(ValueError("on CUDA"))) is None
    assert differs(Raised.by(ValueError("a")), Raised.by(ValueError("b")))
    assert differs(Raised.by(ValueError("a")), Raised.by(TypeError("a")))


def test_random_answers_still_differ_in_their_shape_and_their_device():
    def run(device):
        return torch.rand(3)

    with pytest.raises(DisagreementError, match="the result is on cpu"):
        agree(run)


def test_twins_share_memory_and_strides_as_their_originals_do():
    base = torch.arange(12.0).view(3, 4)
    tree = (base, base.t(), base[1:, ::2], base.to(torch.complex64).conj())
    copy = twins(tree, "cpu")
    assert differs(tree, copy) is None
    assert sharing(copy[0], copy[1:]) == [(0, 0, 0), (1, 0, 4)]
    copy[0][1, 0] = 100
    assert copy[1][0, 1] == copy[2][0, 0] == 100
    assert base[1, 0] == 4
    assert copy[3].is_conj()
