"""NVTX, which nobody listens to here, and the profiler, to whom the GPU's time is the CPU's."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from anydevice.notices import say_once

_depth = threading.local()
_ranges = itertools.count(1)


def _push(message: str) -> int:
    depth: int = getattr(_depth, "value", 0)
    _depth.value = depth + 1
    return depth


def _pop() -> int:
    depth: int = getattr(_depth, "value", 0) - 1
    _depth.value = max(depth, 0)
    return depth if depth >= 0 else -2  # NVTX_NO_PUSH_POP_TRACKING


nvtx = SimpleNamespace(
    rangePushA=_push,
    rangePop=_pop,
    rangeStartA=lambda message: next(_ranges),
    rangeEnd=lambda number: None,
    markA=lambda message: None,
    deviceRangeStart=lambda message, stream: next(_ranges),
    deviceRangeEnd=lambda number, stream: None,
)


def names() -> dict[str, Any]:
    """What torch._C calls them."""
    return {"_nvtx": nvtx}


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """Where NVTX was looked for at import, and the word on the profiler's times."""
    autograd: Any = torch.autograd
    configuration = autograd.profiler.ProfilerConfig

    def profiler_config(state: Any, *options: Any) -> Any:
        if state == autograd.ProfilerState.KINETO_GPU_FALLBACK:
            say_once("The profiler's CUDA times are the CPU's: nothing runs on a real GPU.")
        return configuration(state, *options)

    begin = autograd.profiler.profile.__init__

    def with_cpu(self: Any, *arguments: Any, **options: Any) -> None:
        if options.get("use_device") == "cuda":
            options["use_cpu"] = True  # the GPU's time is derived from the CPU's
        begin(self, *arguments, **options)

    cuda = {torch.profiler.ProfilerActivity.CUDA}
    asked_for = autograd._supported_activities() | cuda
    watched = asked_for - cuda  # not by CUPTI, which a CUDA build has, and which sees real GPUs
    yield torch.autograd, "_supported_activities", lambda: asked_for
    yield torch.autograd.profiler, "_supported_activities", lambda: watched
    yield torch.cuda.nvtx, "_nvtx", nvtx
    yield torch.autograd.profiler, "ProfilerConfig", profiler_config
    yield torch.autograd.profiler.profile, "__init__", with_cpu
