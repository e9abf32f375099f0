"""torchvision's own ops, whose kernels for CUDA need a real GPU: results made by their shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from anydevice.plan.time.overloads import Overload

NAMESPACE = "torchvision"
SUPPRESSED = "of overlapping boxes are assumed to be kept by nms() (--assume-true)."

# Note [torchvision on a hollow GPU]
# torchvision's build for CUDA has kernels that launch at once, its build for the CPU has none. Both
# have functions that compute the shapes on PyTorch's meta device, for torch.compile. So an op is
# asked there, and the results are made on the GPU. `nms` alone returns a number of boxes that
# depends on values: it waits for them, and keeps the share that is assumed of a mask.


def of_vision(op: Overload) -> bool:
    """Whether it is an op of torchvision's."""
    return bool(op.op.namespace == NAMESPACE)


def without_kernel(op: Overload, kept: Callable[[int], int]) -> Callable[..., Any]:
    """What makes the op's results and computes nothing.

    Args:
        op: The op.
        kept: Of so many boxes, how many are kept.
    """

    def made(*args: Any, **kwargs: Any) -> Any:
        [device, *_] = [each.device for each in args if isinstance(each, Tensor) and each.is_cuda]
        if op.name == "nms":
            torch.cuda.current_stream(device).synchronize()
            return torch.empty(kept(len(args[0])), dtype=torch.int64, device=device)
        shapes = op.op(*tree_map_only(Tensor, _on_meta, args), **kwargs)
        return tree_map_only(Tensor, lambda one: torch.empty_like(one, device=device), shapes)

    return made


def _on_meta(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="meta")
