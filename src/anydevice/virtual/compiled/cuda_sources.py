"""What needs NVIDIA's compiler, or CUDA's libraries, and a card; the error names the line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch

from anydevice.frames import own_line

NUMBA = "NUMBA_ENABLE_CUDASIM"  # Numba's own simulator of CUDA, on the host


def extensions() -> Iterator[tuple[Any, str, Any]]:
    """Those that torch.utils.cpp_extension builds."""
    import torch.utils.cpp_extension as module

    yield module, "load_inline", _refusing(module.load_inline, _has_cuda_sources)
    yield module, "load", _refusing(module.load, _has_cuda_files)
    yield module, "CUDAExtension", _refusing(module.CUDAExtension, lambda given: True)


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """What NVRTC would compile."""
    if compile_kernel := getattr(torch.cuda, "_compile_kernel", None):
        yield torch.cuda, "_compile_kernel", _refusing(compile_kernel, lambda given: True)


def ahead_of_time() -> Iterator[tuple[Any, str, Any]]:
    """What torch._inductor.aoti_compile_and_package and its kin call, for a GPU."""
    import torch._inductor.compile_fx as module
    from torch.utils._pytree import tree_leaves

    compile_ahead = module.compile_fx_aot

    @wraps(compile_ahead)
    def compiled(model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        tensors = (*model.parameters(), *model.buffers(), *tree_leaves(inputs))
        if not any(isinstance(each, torch.Tensor) and each.is_cuda for each in tensors):
            return compile_ahead(model, inputs, *arguments, **options)
        line = own_line(sys._getframe(1)) or "the program"
        raise NotImplementedError(
            f"AOTInductor: a library for the GPU, as {line} asks for it, is linked with CUDA's "
            "libraries and runs on a real GPU alone. Fix: torch.compile(model) where there is no "
            "GPU, or export the model on the CPU."
        )

    yield module, "compile_fx_aot", compiled


def simulate_numba() -> None:
    """Before numba is imported."""
    os.environ.setdefault(NUMBA, "1")


def no_cupy() -> str:
    """Why CuPy is not imported."""
    line = own_line(sys._getframe(1)) or "the program"
    return (
        f"CuPy, as {line} imports it, needs NVIDIA's driver and a real GPU. Virtual GPUs run "
        "PyTorch's ops: use torch, or NumPy, where there is no GPU."
    )


def _has_cuda_sources(given: dict[str, Any]) -> bool:
    return bool(given.get("cuda_sources"))


def _has_cuda_files(given: dict[str, Any]) -> bool:
    sources = given.get("sources") or ()
    listed = [sources] if isinstance(sources, str | os.PathLike) else sources
    return any(str(source).endswith((".cu", ".cuh")) for source in listed)


def _refusing(
    build: Callable[..., Any], needs_a_card: Callable[[dict[str, Any]], bool]
) -> Callable[..., Any]:
    inline = build.__name__ == "load_inline"
    names = ["name", "cpp_sources", "cuda_sources"] if inline else ["name", "sources"]

    @wraps(build)
    def built(*arguments: Any, **options: Any) -> Any:
        if not needs_a_card({**dict(zip(names, arguments, strict=False)), **options}):
            return build(*arguments, **options)
        line = own_line(sys._getframe(1)) or "the program"
        raise NotImplementedError(
            f"{build.__name__}: CUDA C++, as {line} asks for it, needs NVIDIA's compiler and a "
            "real GPU. Virtual GPUs run PyTorch's ops, Triton's kernels and C++ for the CPU: use "
            "one of those where there is no GPU."
        )

    return built
