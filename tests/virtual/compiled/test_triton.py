"""Triton's kernels on virtual GPUs that compute: numbers, and what a card would not show."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from anydevice.virtual.compiled import kernels as given
from anydevice.virtual.compiled.interpreter import KernelError
from anydevice.virtual.compiled.reach import OutOfBoundsError, Reach
from tests.virtual.own_process import run

triton = pytest.importorskip("triton")
OutOfResources = triton.runtime.OutOfResources
TRITON = tuple(map(int, triton.__version__.split(".")[:2]))
pytestmark = pytest.mark.usefixtures("seeded")


@pytest.fixture(scope="module")
def kernels(virtual_gpu: None) -> Any:
    from tests.virtual.compiled import kernels

    return kernels


def test_a_kernel_computes_on_the_gpus_own_bytes(kernels: Any) -> None:
    x, y = torch.randn(2, 1000, device="cuda")
    before = torch.cuda.memory_allocated()
    out = kernels.add(x, y)
    assert_close(out, x + y, rtol=0, atol=0)
    assert torch.cuda.memory_allocated() == before + 4096


def test_an_autotuned_product_has_torchs_numbers(kernels: Any) -> None:
    a = torch.randn(40, 70, device="cuda", dtype=torch.float16)
    b = torch.randn(70, 50, device="cuda", dtype=torch.float16)
    assert_close(kernels.matmul(a, b), a @ b)
    assert kernels.matmul_kernel.best_config.kwargs == {"BLOCK": 32}  # the first


def test_bfloat16_is_rounded_after_each_operation(kernels: Any) -> None:
    x, y = torch.randn(2, 300, device="cuda").bfloat16()
    out = torch.empty_like(x)
    kernels.blend_kernel[(3,)](x, y, out, 300, BLOCK=128)
    assert_close(out, x * y + x - torch.maximum(x, y), rtol=0, atol=0)
    a, b = torch.randn(2, 20, 20, device="cuda").bfloat16()
    assert_close(kernels.matmul(a, b), a @ b)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_float8_products_have_the_exact_numbers(kernels: Any, dtype: torch.dtype) -> None:
    a, b = torch.randn(2, 16, 16, device="cuda").to(dtype)
    out = torch.empty(16, 16, device="cuda")
    kernels.matmul_kernel[(1, 1)](a, b, out, 16, 16, 16)
    assert_close(out, a.float() @ b.float())


def test_none_numbers_and_flags_are_what_a_compiled_kernel_gets(kernels: Any) -> None:
    x = torch.randn(64, device="cuda")
    out = torch.empty_like(x)
    kernels.optional_kernel[(1,)](x, None, out, 60, 0.5, True, BLOCK=64)
    assert_close(out[:60], torch.tanh(-x * 0.5)[:60])
    kernels.optional_kernel[(1,)](x, x, out, 64, 2.0, False, BLOCK=64)
    assert_close(out, torch.tanh(4 * x))


def test_atomics_add_over_programs(kernels: Any) -> None:
    x = torch.rand(1000, device="cuda")
    total, most = torch.zeros(1, device="cuda"), torch.zeros(1, dtype=torch.int32, device="cuda")
    kernels.count_kernel[(8,)](x, total, most, 1000, BLOCK=128)
    assert_close(total[0], x.sum())
    assert most.item() == 999


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr")
@pytest.mark.skipif(TRITON >= (3, 9), reason="this Triton has no block pointers any more")
def test_block_pointers(kernels: Any) -> None:
    x = torch.randn(33, 45, device="cuda")
    out = torch.zeros_like(x)
    kernels.tile_kernel[(3,)](x, out, 33, 45, BLOCK=16)
    assert_close(out, 2 * x, rtol=0, atol=0)


def test_descriptors(kernels: Any) -> None:
    x = torch.randn(32, 48, device="cuda")
    out = torch.zeros_like(x)
    kernels.described(x, out)
    assert_close(out, x + 1, rtol=0, atol=0)


def test_a_table_of_pointers_leads_to_other_tensors(kernels: Any) -> None:
    rows = [torch.randn(16, device="cuda") for _ in range(3)]
    table = torch.tensor([row.data_ptr() for row in rows], device="cuda")
    out = torch.empty(3, 16, device="cuda")
    kernels.through_table_kernel[(3,)](table, out, BLOCK=16)
    assert_close(out, torch.stack(rows), rtol=0, atol=0)


def test_where_the_host_is_short_of_memory_a_table_may_lead_anywhere(kernels: Any) -> None:
    row = torch.arange(4.0)  # as a GPU's tensor lies then: in plain memory
    table = torch.tensor([row.data_ptr()])
    at = row.data_ptr() + 4 * np.arange(4, dtype=np.uint64)
    access = at, np.ones(4, bool), np.zeros(4, np.float32), np.dtype(np.float32)
    assert Reach({"table": table}).load(*access).tolist() == row.tolist()
    with pytest.raises(OutOfBoundsError):
        Reach({"other": row.clone()}).load(*access)


def test_a_kernel_may_be_made_in_a_function(kernels: Any) -> None:
    x = torch.randn(16, device="cuda")
    for factor in (2.0, 3.0):
        out = torch.empty_like(x)
        kernels.made_here(factor)[(1,)](x, out, BLOCK=16)
        assert_close(out, factor * x)


def test_an_access_outside_of_the_tensors_names_the_kernels_line(kernels: Any) -> None:
    x = torch.ones(1000, device="cuda")
    beside = torch.full((24,), 7.0, device="cuda")  # where a card would read on
    lines = Path(kernels.__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "# no mask" in text)
    with pytest.raises(OutOfBoundsError) as failed:
        kernels.unmasked_kernel[(8,)](x, torch.empty_like(x), 1000, BLOCK=128)
    assert str(failed.value) == (
        "expected a kernel that stays inside its tensors, got unmasked_kernel at "
        f"kernels.py:{line}, in program (7, 0, 0), which loads 4 bytes right after the end of x "
        "(float32, shape [1000]). On a card it meets other data there, or ends with an illegal "
        "memory access. Fix: mask the access."
    )
    assert beside.sum().item() == 168


def test_an_error_in_a_kernel_names_its_line(kernels: Any) -> None:
    x = torch.ones(48, device="cuda")
    with pytest.raises(KernelError, match=r"asserts at kernels.py:\d+, in program \(0, 0, 0\)"):
        kernels.asserts[(1,)](x, debug=True)


def test_what_the_compiler_refuses_is_its_own_error(kernels: Any) -> None:
    x = torch.ones(48, device="cuda")
    with pytest.raises(triton.CompilationError, match="arange's range must be") as refused:
        kernels.add_kernel[(1,)](x, x, x, 48, BLOCK=48)
    assert "add_kernel at kernels.py:" in refused.value.__notes__[0]


def test_what_python_knows_and_tritons_language_does_not_is_refused(kernels: Any) -> None:
    x = torch.zeros(4, device="cuda")
    with pytest.raises(triton.CompilationError, match="unsupported AST node type: Break"):
        kernels.breaks[(1,)](x)
    with pytest.raises(triton.CompilationError, match="re-assigned to fp32 in loop"):
        kernels.changes_its_type[(1,)](x, 3)
    with pytest.raises(triton.CompilationError, match="K >= 16"):
        kernels.small_product[(1,)](x, K=8)
    with pytest.raises(TypeError, match="failed to specialize argument of type: object"):
        kernels.asserts[(1,)](object())
    with pytest.raises(OutOfResources, match="threads, Required: 2048, Hardware limit: 1024"):
        kernels.asserts[(1,)](x, num_warps=64)
    with pytest.raises(AssertionError, match="num_warps must be a power of 2"):
        kernels.asserts[(1,)](x, num_warps=3)
    assert x.tolist() == [0.0] * 4


def test_a_configuration_that_the_card_lacks_room_for_is_not_taken(kernels: Any) -> None:
    x = torch.zeros(1, device="cuda")
    tried = [triton.Config({"K": 16}, num_warps=w) for w in (64, 8, 4)]
    kernels.tuned(tried)[(1,)](x)
    assert x.item() == 16


def test_a_launch_gives_back_the_kernel_as_compiled_for_the_card(kernels: Any) -> None:
    x = torch.ones(128, device="cuda")
    kernel = kernels.add_kernel[(1,)](x, x, x, 128, BLOCK=128, num_warps=8)
    assert 1 <= kernel.n_regs <= 255
    assert kernel.metadata.num_warps == 8
    assert ".visible .entry add_kernel" in kernel.asm["ptx"]


def test_what_a_card_refuses_to_launch(kernels: Any) -> None:
    x = torch.ones(8, device="cuda")
    with pytest.raises(KeyError, match="Keyword argument DEPTH was specified but unrecognised"):
        kernels.add_kernel[(1,)](x, x, x, 8, BLOCK=8, DEPTH=2)
    with pytest.raises(RuntimeError, match="invalid argument"):
        kernels.add_kernel[(1, 65536)](x, x, x, 8, BLOCK=8)
    with pytest.raises(RuntimeError, match="outside of the scope of a kernel"):
        kernels.add_kernel(x, x, x, 8, 8)


def test_the_hook_of_a_configuration_sees_the_arguments_alone(kernels: Any) -> None:
    seen: list[set[str]] = []
    hooked = triton.Config({"BLOCK": 32}, pre_hook=lambda given: seen.append(set(given)))
    tuned = triton.autotune([hooked, triton.Config({"BLOCK": 64})], key=["n"])(kernels.add_kernel)
    x = torch.ones(32, device="cuda")
    tuned[(1,)](x, x, torch.empty_like(x), 32)
    assert {"x", "y", "out", "n", "BLOCK"} <= seen[0]
    assert not [name for each in seen for name in each if name.startswith("_")]


def test_programs_that_overwrite_each_other_are_reported(
    kernels: Any, caplog: pytest.LogCaptureFixture
) -> None:
    x, out = torch.randn(64, device="cuda"), torch.zeros(16, device="cuda")
    with caplog.at_level(logging.WARNING):
        kernels.colliding_kernel[(4,)](torch.ones_like(x), out, BLOCK=16)  # the same value
        assert "colliding" not in caplog.text
        kernels.colliding_kernel[(4,)](x, out, BLOCK=16)
    assert "two of its programs store different values at one address of out" in caplog.text


def test_a_tensor_of_the_host_is_refused_as_on_a_card(kernels: Any) -> None:
    x = torch.ones(8)
    with pytest.raises(ValueError, match=r"Pointer argument \(at 0\) cannot be accessed"):
        kernels.add_kernel[(1,)](x, x, x, 8, BLOCK=8)


def test_triton_finds_the_card() -> None:
    card = run("""
virtual.enable(gpu="t4")
import triton
driver = triton.runtime.driver.active
print(json.dumps([driver.get_current_target().arch, str(driver.get_active_torch_device()),
                  driver.utils.get_device_properties(0)["max_shared_mem"]]))
""")
    assert card == [75, "cuda:0", 64 << 10]


def test_a_kernel_from_before_the_gpus_came_runs_on_them_and_not_after() -> None:
    seen = run("""
import triton
from tests.virtual.compiled import kernels
driver = triton.runtime.driver
run = triton.runtime.JITFunction.run
with virtual.virtual_gpus():
    x = torch.ones(8, device="cuda")
    seen = [kernels.add(x, x).sum().item()]
print(json.dumps([*seen, driver._active is None, triton.runtime.JITFunction.run is run]))
""")
    assert seen == [16, True, True]


def test_a_name_that_triton_lacks_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from anydevice.virtual.compiled import names

    monkeypatch.setitem(names.TRITON, "bench", "triton.runtime.autotuner:Autotuner._time")
    names.triton_names.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert list(given.attributes()) == []
    names.triton_names.cache_clear()
    assert "Triton's kernels do not run on virtual GPUs: triton 3." in caplog.text
    assert "has no triton.runtime.autotuner.Autotuner._time." in caplog.text


def test_the_variable_of_a_loop_is_a_tensor(kernels: Any) -> None:
    x, total = torch.randn(3, 16, device="cuda"), torch.empty(16, device="cuda")
    kernels.far_rows_kernel[(1,)](x, total, 3, 16, BLOCK=16)
    torch.testing.assert_close(total, x.sum(0))
