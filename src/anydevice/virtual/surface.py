"""The names of torch._C that a build without CUDA lacks, so that torch.cuda's own code runs."""

from typing import Any

import torch

from anydevice.virtual import machine
from anydevice.virtual.card import GPU

_hidden: dict[str, Any] = {}


def show(gpus: int, gpu: GPU) -> None:
    """Makes torch.cuda see the GPUs."""
    native = machine.native()

    def set_device(device: int) -> None:
        if device >= 0:
            machine.check(native.anydevice_set_current_device(device))

    def exchange_device(device: int) -> int:
        before: int = native.anydevice_current_device()
        set_device(device)
        return before

    names = {
        "_cuda_getDeviceCount": lambda: gpus,
        "_cuda_init": lambda: None,
        "_cuda_isInBadFork": lambda: False,
        "_cuda_getDevice": native.anydevice_current_device,
        "_cuda_setDevice": set_device,
        "_cuda_exchangeDevice": exchange_device,
        "_cuda_maybeExchangeDevice": exchange_device,
        "_cuda_synchronize": lambda: None,
    }
    for name, value in names.items():
        setattr(torch._C, name, value)
    torch.cuda._cudart = object()
    torch.cuda._is_in_bad_fork = torch._C._cuda_isInBadFork


def hide() -> None:
    """Takes the GPUs out of torch.cuda's sight."""
