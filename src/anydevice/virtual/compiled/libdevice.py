"""The functions of CUDA's libdevice that kernels call, computed by PyTorch on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import torch

from anydevice.virtual.compiled.names import interpreter_names

MODULES = ("triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice")
# By libdevice's name, where torch has another.
OTHER_NAMES = {
    "abs": "abs",
    "fabs": "abs",
    "fma": "addcmul",
    "isinf": "isinf",
    "isnan": "isnan",
    "finitef": "isfinite",
    "isfinited": "isfinite",
    "rint": "round",
    "nearbyint": "round",
    "cyl_bessel_i0": "i0",
    "normcdf": "special.ndtr",
    "normcdfinv": "special.ndtri",
    "erfcx": "special.erfcx",
    "j0": "special.bessel_j0",
    "j1": "special.bessel_j1",
    "fast_dividef": "div",
    "div_rn": "div",
    "mul_rn": "mul",
    "add_rn": "add",
    "sub_rn": "sub",
    "fast_powf": "pow",
}


def is_libdevice(function: object) -> bool:
    """Whether a kernel's global name is one of these functions."""
    return isinstance(function, FunctionType) and function.__module__ in MODULES


def computed(name: str) -> Callable[..., Any]:
    """The function of this name, on the interpreter's tensors."""

    def call(*arguments: Any, **_: Any) -> Any:
        names = interpreter_names()
        given = [names.semantic.to_tensor(argument) for argument in arguments]
        floats = [torch.from_numpy(np.array(each.handle.data)) for each in given]
        result = _function(name)(*floats).numpy()
        first = max(given, key=lambda each: len(each.shape))
        to = import_language()
        scalar = to.int1 if result.dtype == np.bool_ else first.dtype
        kind = to.block_type(scalar, list(result.shape)) if first.type.is_block() else scalar
        return to.tensor(names.Handle(result.astype(names.dtype_of(scalar)), scalar), kind)

    return call


def import_language() -> Any:
    """triton.language, which is there by now."""
    import triton.language

    return triton.language


def _function(name: str) -> Callable[..., torch.Tensor]:
    if name == "fma":
        return lambda x, y, z: x * y + z
    plain = name.removeprefix("fast_")
    found: Any = torch
    for part in OTHER_NAMES.get(name, OTHER_NAMES.get(plain, plain)).split("."):
        found = getattr(found, part, None) or getattr(found, part.removesuffix("f"), None)
    if not callable(found):
        raise NotImplementedError(
            f"libdevice.{name} is not computed on virtual GPUs: use a function of triton.language."
        )
    return found  # type: ignore[no-any-return]
