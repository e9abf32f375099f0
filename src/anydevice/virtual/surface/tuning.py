"""TunableOp, workspaces and other choices that change nothing here, kept as they are set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anydevice.devices.catalogue import Card
from anydevice.virtual import core

CUBLAS_WORKSPACE = 8 << 20  # bytes, PyTorch's own for cards before Hopper
CUBLASLT_WORKSPACE = 1 << 20

# The names that read and write a choice, and what it is to begin with.
CHOICES: dict[tuple[str, str], Any] = {
    ("_cuda_get_cudnn_benchmark_limit", "_cuda_set_cudnn_benchmark_limit"): 10,
    ("_cuda_get_conv_benchmark_empty_cache", "_cudnn_set_conv_benchmark_empty_cache"): True,
    ("_cuda_tunableop_is_enabled", "_cuda_tunableop_enable"): False,
    ("_cuda_tunableop_tuning_is_enabled", "_cuda_tunableop_tuning_enable"): True,
    ("_cuda_record_untuned_is_enabled", "_cuda_record_untuned_enable"): False,
    ("_cuda_tunableop_get_max_tuning_duration", "_cuda_tunableop_set_max_tuning_duration"): 30,
    ("_cuda_tunableop_get_max_tuning_iterations", "_cuda_tunableop_set_max_tuning_iterations"): 100,
    ("_cuda_getCublasWorkspaceSize", "_cuda_setCublasWorkspaceSize"): CUBLAS_WORKSPACE,
    ("_cuda_getCublasLtWorkspaceSize", "_cuda_setCublasLtWorkspaceSize"): CUBLASLT_WORKSPACE,
}


def names(card: Card) -> dict[str, Any]:
    """What torch._C calls them."""
    chosen: dict[str, Any] = {}
    filename = "tunableop_results.csv"

    def set_filename(name: str, insert_device_ordinal: bool = False) -> None:
        nonlocal filename
        stem, dot, ending = name.rpartition(".")
        device = str(core.library().anydevice_current_device()) if insert_device_ordinal else ""
        filename = f"{stem}{device}{dot}{ending}" if dot else f"{name}{device}"

    table: dict[str, Any] = {}
    for (reader, writer), first in CHOICES.items():
        table[reader] = _reading(chosen, reader, first)
        table[writer] = _writing(chosen, reader)
    rotating = "_cuda_tunableop_get_rotating_buffer_size"
    return table | {
        rotating: lambda: chosen.get(rotating, card.l2_cache),
        "_cuda_tunableop_set_rotating_buffer_size": (
            lambda megabytes: chosen.__setitem__(rotating, megabytes << 20)
        ),
        "_cuda_resetCublasWorkspaceSize": lambda: chosen.pop("_cuda_getCublasWorkspaceSize", None),
        "_cuda_resetCublasLtWorkspaceSize": (
            lambda: chosen.pop("_cuda_getCublasLtWorkspaceSize", None)
        ),
        "_cuda_tunableop_get_filename": lambda: filename,
        "_cuda_tunableop_set_filename": set_filename,
        "_cuda_tunableop_set_numerical_check_tolerances": lambda enable, atol=1e-5, rtol=1e-5: None,
        "_cuda_tunableop_get_results": lambda: (),
        "_cuda_tunableop_get_validators": _validators,
        "_cuda_tunableop_read_file": lambda name="": False,
        "_cuda_clearCublasWorkspaces": lambda: None,
    }


def _reading(chosen: dict[str, Any], name: str, first: Any) -> Callable[[], Any]:
    return lambda: chosen.get(name, first)


def _writing(chosen: dict[str, Any], name: str) -> Callable[[Any], None]:
    return lambda value: chosen.__setitem__(name, value)


def _validators() -> tuple[tuple[str, str], ...]:
    import torch

    return (("PT_VERSION", torch.__version__.partition("+")[0]),)
