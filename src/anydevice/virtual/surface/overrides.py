"""torch._native: PyTorch's own kernels in Triton and CuTe in the place of some CUDA ops.

They are there where triton is installed, as every CUDA wheel brings it, and would look for a
driver. On virtual GPUs the ops take their ordinary kernels.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

KEY = "CUDA"
_put_off = False


def put_off() -> None:
    """Without them until put_back(), also those that are registered later."""
    global _put_off
    registry = _registry()
    if registry is not None and KEY not in registry._filter_state._dispatch_keys:
        registry.deregister_op_overrides(disable_dispatch_keys=KEY)
        _put_off = True


def put_back() -> None:
    """As put_off() found them."""
    global _put_off
    if _put_off:
        _registry().reenable_op_overrides(enable_dispatch_keys=KEY)
        _put_off = False


def _registry() -> Any:
    """None before torch 2.13."""
    if importlib.util.find_spec("torch._native") is None:
        return None
    return importlib.import_module("torch._native.registry")
