"""CUDA C++ on virtual GPUs: one sentence, with the line that asks for it."""

from collections.abc import Callable

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
