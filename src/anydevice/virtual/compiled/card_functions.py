"""What a kernel asks of the card it runs on, in triton.language.extra.cuda."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from anydevice.virtual.compiled import driver
from anydevice.virtual.compiled.names import interpreter_names

MODULES = ("triton.language.extra.cuda.utils", "triton.language.extra.cuda.gdc")


def is_of_the_card(function: object) -> bool:
    """Whether a name in a kernel is one of these functions."""
    return isinstance(function, FunctionType) and function.__module__ in MODULES


def computed(name: str) -> Callable[..., Any]:
    """The function of this name, for the interpreter."""
    if name not in FUNCTIONS:
        return lambda *_, **__: _unknown(name)
    return FUNCTIONS[name]


def _unknown(name: str) -> None:
    raise NotImplementedError(
        f"triton.language.extra.cuda.{name} is inline PTX, which runs on a card alone."
    )


def _globaltimer() -> Any:
    """Nanoseconds."""
    return _number(interpreter_names().semantic.builder.get_int64(time.perf_counter_ns()))


def _smid() -> Any:
    """Programs are given to the multiprocessors in turn."""
    builder = interpreter_names().builder
    (x, y, z), (columns, rows, _) = builder.grid_idx, builder.grid_dim
    here: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    program = x + columns * (y + rows * z)
    return _number(builder.get_int32(program % here.multi_processor_count))


def _number(handle: Any) -> Any:
    import triton.language as tl

    return tl.tensor(handle, handle.dtype)


def _num_warps() -> int:
    return int(interpreter_names().builder.options.num_warps)


def _wait() -> None:
    """Kernels run one after the other: what an earlier one writes is there."""


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "globaltimer": _globaltimer,
    "smid": _smid,
    "num_warps": _num_warps,
    "num_threads": lambda: driver.WARP * _num_warps(),
    "gdc_wait": _wait,
    "gdc_launch_dependents": _wait,
}
