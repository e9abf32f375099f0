"""CUDA C++ on virtual GPUs: one sentence, with the line that asks for it."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.utils.cpp_extension as extensions

pytestmark = pytest.mark.usefixtures("virtual_gpu")
ASKED: dict[str, Callable[[], object]] = {
    "load_inline": lambda: extensions.load_inline("m", "", cuda_sources="__global__ void k() {}"),
    "load": lambda: extensions.load("m", ["a.cpp", "b.cu"]),
    "CUDAExtension": lambda: extensions.CUDAExtension("m", ["b.cu"]),
    "_compile_kernel": lambda: torch.cuda._compile_kernel("__global__ void k() {}", "k"),
}


@pytest.mark.parametrize("name", ASKED)
def test_cuda_code_is_refused_with_its_line(name: str) -> None:
    with pytest.raises(NotImplementedError, match=rf"{name}: CUDA C\+\+, as test_cuda_sources.py:"):
        ASKED[name]()


def test_cupy_is_refused_with_its_line_and_counts_as_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cupy.py").write_text("raise AssertionError('it was loaded')")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_spec("cupy")
    with pytest.raises(ImportError, match=r"^CuPy, as test_cuda_sources.py:\d+ imports it, needs"):
        import cupy  # noqa: F401


def test_a_library_compiled_ahead_of_time_is_refused_for_a_gpu() -> None:
    graph = torch.fx.symbolic_trace(lambda x: (x + 1,))
    with pytest.raises(NotImplementedError, match=r"^AOTInductor: .*test_cuda_sources.py:.*Fix: "):
        torch._inductor.aot_compile(graph, (torch.ones(2, device="cuda"),))
