"""What a training does outside of ops: it makes optimizers, and runs backward passes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.optim import Optimizer

from anydevice.plan.time.recorder import in_backward

DATA_PARALLEL = "torch.nn.parallel.data_parallel"  # whose name is a function's in torch.nn.parallel


@contextmanager
def seen(made: Callable[[Optimizer], None], went_back: Callable[[], None]) -> Iterator[None]:
    """Inside the block, each new optimizer and each backward pass that ends is reported."""
    make = Optimizer.__init__

    def make_seen(self: Optimizer, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        made(self)

    def seen_back(run: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(run)
        def run_seen(*arguments: Any, **options: Any) -> Any:
            inside = in_backward()
            gradients = run(*arguments, **options)
            if not inside:
                went_back()
            return gradients

        return run_seen

    with (
        patch.object(sys.modules[DATA_PARALLEL], "parallel_apply", in_turn),
        patch.object(Optimizer, "__init__", make_seen),
        patch.object(torch.autograd, "backward", seen_back(torch.autograd.backward)),
        patch.object(torch.autograd, "grad", seen_back(torch.autograd.grad)),
    ):
        yield


def in_turn(modules: Any, inputs: Any, options: Any, devices: Any) -> list[Any]:
    """What DataParallel does in a thread for each GPU, where nothing watches."""
    outputs = []
    for module, given, named, device in zip(modules, inputs, options, devices, strict=True):
        with torch.cuda.device(device):
            outputs.append(module(*given, **named))
    return outputs


def trained(optimizer: Optimizer) -> list[Tensor]:
    """The parameters of an optimizer."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def changes(optimizer: Optimizer) -> int:
    """How often its parameters were written to."""
    return sum(p._version for p in trained(optimizer))
