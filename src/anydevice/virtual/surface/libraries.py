"""The libraries that a CUDA build carries: cuDNN, cuSPARSELt; native/kernels has their ops."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from functools import partial
from types import SimpleNamespace
from typing import Any

CUDNN = (9, 19, 0)
CUDNN_NUMBER = 91900
CUSPARSELT_NUMBER = 800
BLAS_HANDLE = 0x1000
SOLVER_HANDLE = 0x2000


class RNNMode(IntEnum):
    """`torch._C._cudnn.RNNMode`."""

    rnn_relu = 0
    rnn_tanh = 1
    lstm = 2
    gru = 3


cudnn = SimpleNamespace(
    is_cuda=True,
    RNNMode=RNNMode,
    getCompileVersion=lambda: CUDNN,
    getRuntimeVersion=lambda: CUDNN,
    getVersionInt=lambda: CUDNN_NUMBER,
)


# Of a product: the best algorithm, its split, how it splits, and the number of algorithms.
cusparselt = SimpleNamespace(
    getVersionInt=lambda: CUSPARSELT_NUMBER,
    mm_search=lambda *arguments: (0, 1, -1, 0),
)


def _can_use_attention(name: str, given: Any, debug: bool) -> bool:
    import torch

    backend = int(getattr(torch._C._SDPBackend, name))
    tensors = given.query, given.key, given.value, given.attn_mask
    how = given.dropout, given.is_causal, given.enable_gqa
    asked: bool = torch.ops.anydevice.can_use_attention(backend, *tensors, *how, debug)
    return asked


def names() -> dict[str, Any]:
    """What torch._C calls them."""
    return {
        "_has_cusparselt": True,
        "_cusparselt": cusparselt,
        "_has_cudnn": True,
        "_cudnn": cudnn,
        "_get_cudnn_batch_norm_reserve_space_size": lambda input, training: 0,
        "_cuda_getCurrentBlasHandle": lambda: BLAS_HANDLE,
        "_cuda_getCurrentSolverHandle": lambda: SOLVER_HANDLE,
        "_cuda_getHipblasltVersion": lambda: 0,
        "_rocm_is_backward_pass": lambda: False,
        "_is_flash_attention_available": lambda: True,
        "_can_use_flash_attention": partial(_can_use_attention, "FLASH_ATTENTION"),
        "_can_use_mem_efficient_attention": partial(_can_use_attention, "EFFICIENT_ATTENTION"),
        "_can_use_cudnn_attention": partial(_can_use_attention, "CUDNN_ATTENTION"),
    }


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """What torch.backends found out when it was imported."""
    import torch.backends.cudnn.rnn
    import torch.backends.cusparselt as sparse

    module: Any = torch.backends.cudnn
    rnn: Any = torch.backends.cudnn.rnn
    yield module.m, "_cudnn", cudnn
    yield module.m, "_init", lambda: True
    yield module.m, "__cudnn_version", CUDNN_NUMBER
    yield rnn.m, "_cudnn", cudnn
    c: Any = torch._C
    backends: Any = torch.backends
    limit = c._cuda_get_cudnn_benchmark_limit, c._cuda_set_cudnn_benchmark_limit
    yield type(module), "benchmark_limit", backends.ContextProp(*limit)
    yield sparse, "_cusparselt", cusparselt
    yield sparse, "__cusparselt_version", CUSPARSELT_NUMBER
    yield sparse, "_init", lambda: True
