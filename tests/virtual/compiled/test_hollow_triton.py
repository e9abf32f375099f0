"""Triton's kernels on hollow GPUs: compiled for the card, launched as an entry of a plan."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import anydevice as ad
from anydevice.virtual.compiled import ir
from anydevice.virtual.compiled.launches import Launch, launching

pytest.importorskip("triton")


@pytest.fixture(scope="module", autouse=True)
def hollow() -> Iterator[None]:
    with ad.virtual_gpus(1, "a100-80gb", hollow=True):
        yield


@pytest.fixture(scope="module")
def kernels() -> Any:
    from tests.virtual.compiled import kernels

    return kernels


@pytest.fixture
def launches() -> Iterator[list[Launch]]:
    heard: list[Launch] = []
    with launching(heard.append):
        yield heard


def test_an_autotuned_product_is_one_launch_with_its_flops(
    kernels: Any, launches: list[Launch]
) -> None:
    before = torch.cuda.memory_allocated()
    a, b = torch.empty(400, 700, device="cuda").half(), torch.empty(700, 512, device="cuda").half()
    kernels.matmul(a, b)
    (product,) = launches
    tiles = 13 * 16 * 22  # of 32 × 32 × 32: the first configuration
    assert [(p.m, p.n, p.k, round(p.share)) for p in product.products] == [(32, 32, 32, tiles)]
    assert product.bytes == 2 * (400 * 700 + 700 * 512 + 400 * 512)
    assert product.unit == "float16"
    assert 0 < product.fill <= 1
    assert [each.shape for each in product.writes] == [(400, 512)]
    compiled = kernels.matmul_kernel.fn.fn
    *_, kernel = (each for cache in compiled.device_caches.values() for each in cache[0].values())
    assert 16 <= kernel.n_regs <= 255
    del a, b, product, launches[:]
    assert torch.cuda.memory_allocated() == before  # Triton keeps none of them


def test_triton_knows_the_bandwidth_of_the_card() -> None:
    from triton.testing import get_dram_gbps

    assert get_dram_gbps() == pytest.approx(2039, rel=1e-3)


def test_what_the_card_has_no_room_for_fails_as_there(kernels: Any, launches: list[Launch]) -> None:
    from triton.runtime.errors import OutOfResources

    square = torch.empty(1024, 1024, device="cuda")
    with pytest.raises(OutOfResources, match=r"shared memory, Required: .* limit: 166912"):
        kernels.large_kernel[(1,)](square, square, square, BLOCK=256, num_stages=4)
    assert not launches


def test_what_a_card_refuses_to_launch(kernels: Any, launches: list[Launch]) -> None:
    x, host = torch.empty(8, device="cuda"), torch.empty(8)
    with pytest.raises(ValueError, match=r"Pointer argument \(at 1\) cannot be accessed"):
        kernels.add_kernel[(1,)](x, host, x, 8, BLOCK=8)
    with pytest.raises(RuntimeError, match="invalid argument"):
        kernels.add_kernel[(1, 65536)](x, x, x, 8, BLOCK=8)
    kernels.add_kernel[(0,)](x, x, x, 8, BLOCK=8)
    assert not launches


LOOP = """
tt.func public @kernel(%q: !tt.ptr<f16> loc("q"(#loc)), %n: i32 loc("n"(#loc))) {
  %c0 = arith.constant 0 : i32 loc(#loc1)
  %c64 = arith.constant 64 : i32 loc(#loc1)
  %row = tt.get_program_id x : i32 loc(#loc2)
  %begin = arith.muli %row, %c64 : i32 loc(#loc2)
  %high = arith.addi %begin, %c64 : i32 loc(#loc2)
  %end = arith.minsi %high, %n : i32 loc(#loc2)
  %p = tt.splat %q : !tt.ptr<f16> -> tensor<64x!tt.ptr<f16>> loc(#loc2)
  %out = scf.for %at = %c0 to %end step %c64 iter_args(%now = %p) -> (tensor<64xf32>)  : i32 {
    %k = tt.load %now : tensor<64x!tt.ptr<f16>> loc(#loc3)
    %s = tt.dot %x, %k, %z, inputPrecision = tf32 : tensor<64x16xf16> * tensor<16x64xf16> -> tensor<64x64xf32> loc(#loc3)
    scf.yield %s : tensor<64xf32> loc(#loc3)
  } loc(#loc4)
  tt.store %p, %out : tensor<64x!tt.ptr<f16>> loc(#loc4)
  tt.return loc(#loc)
} loc(#loc)
"""  # noqa: E501


def test_a_loop_that_ends_at_the_diagonal_is_counted_for_each_program() -> None:
    done = ir.work(LOOP, {"q": None, "n": 640}, (10, 1, 1))
    assert done.products == {(1, 64, 64, 16, "f16"): pytest.approx(55)}  # 1 + 2 + … + 10
    assert done.loaded == {"q": pytest.approx(55 * 128)}
    assert done.stored == {"q": pytest.approx(10 * 128)}
    many = ir.work(LOOP, {"q": None, "n": 64000}, (1000, 1, 1))  # of which some are evaluated
    assert sum(many.products.values()) == pytest.approx(500500, rel=0.01)
