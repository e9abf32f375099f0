"""The libraries that a CUDA build carries: cuDNN, whose ops native/kernels writes from others."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

CUDNN = (9, 19, 0)
CUDNN_NUMBER = 91900
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


def names() -> dict[str, Any]:
    """What torch._C calls them."""
    return {
        "_has_cudnn": True,
        "_cudnn": cudnn,
        "_cuda_getCurrentBlasHandle": lambda: BLAS_HANDLE,
        "_cuda_getCurrentSolverHandle": lambda: SOLVER_HANDLE,
        "_cuda_getHipblasltVersion": lambda: 0,
        "_rocm_is_backward_pass": lambda: False,
    }


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """What torch.backends.cudnn found out when it was imported."""
    import torch.backends.cudnn.rnn

    module: Any = torch.backends.cudnn
    rnn: Any = torch.backends.cudnn.rnn
    yield module.m, "_cudnn", cudnn
    yield module.m, "_init", lambda: True
    yield module.m, "__cudnn_version", CUDNN_NUMBER
    yield rnn.m, "_cudnn", cudnn
