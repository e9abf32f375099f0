"""Kernels given as C++ text run on a virtual GPU, and what does not compile says why."""

import pytest
import torch
from torch.cuda.jiterator import _create_jit_fn, _create_multi_output_jit_fn

pytestmark = pytest.mark.usefixtures("seeded")


def test_a_kernel_is_called_on_each_element_after_broadcast_and_promotion():
    scaled = _create_jit_fn(
        "template <typename T> T f(T x, T y, T by) { return x + by * y; }", by=2
    )
    x, y = torch.arange(3, device="cuda"), torch.rand(2, 1, device="cuda")
    assert scaled(x, y, by=0.5).equal(x + 0.5 * y)
    assert scaled(x.to(torch.int32), x).equal(3 * x)


def test_a_kernel_may_give_several_results():
    both = _create_multi_output_jit_fn(
        "template <typename T> void f(T x, T& a, T& b) { a = x + 1; b = -x; }", num_outputs=2
    )
    x = torch.rand(5, 4, device="cuda").t()
    first, second = both(x)
    assert first.equal(x + 1)
    assert second.equal(-x)


def test_a_kernel_that_does_not_compile_shows_the_compilers_words():
    broken = _create_jit_fn("template <typename T> T f(T x) { return y; }")
    with pytest.raises(RuntimeError, match=r"(?s)did not take this kernel:.*y.* not declared"):
        broken(torch.ones(2, device="cuda"))
