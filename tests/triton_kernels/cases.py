"""What the tests of Liger-Kernel's layers share: a layer, what it stands for, and its inputs."""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

import anydevice as ad

Case = tuple[Callable[..., Any], Callable[..., Any], list[Tensor]]


@pytest.fixture(scope="module", autouse=True)
def gpu() -> Iterator[None]:
    """A virtual GPU for all tests of a module that imports this."""
    with ad.virtual_gpus():
        yield


def numbers(*sizes: int) -> Tensor:
    """Random numbers on it."""
    return torch.randn(*sizes, device="cuda")


def op(module: str, name: str) -> Any:
    """A function of Liger's with a backward pass of its own."""
    return getattr(import_module(f"liger_kernel.ops.{module}"), f"Liger{name}Function").apply
