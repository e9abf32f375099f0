"""A trained network as a file that PyTorch alone can run."""

import copy
import io
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anydevice.devices.move import move
from anydevice.errors import UsageError
from anydevice.files import write_whole


def export(network: nn.Module, example: Any, path: Path, device: torch.device) -> Path:
    """Writes the network as `torch.export` keeps it, for batches of any size, on this device.

    `torch.export.load(path).module()` runs it, without anydevice.
    """
    inputs = example if isinstance(example, tuple) else (example,)
    if not inputs or not all(isinstance(part, Tensor) and part.dim() for part in inputs):
        raise UsageError("expected an example of tensors with the samples along dimension 0.")
    # torch.export takes sizes of 0 and 1 for constants, so the example has two samples.
    two = tuple(part[:1].expand(2, *part.shape[1:]).contiguous() for part in inputs)
    samples = torch.export.Dim("samples", min=1)
    there = move(copy.deepcopy(network), device).eval()
    shapes = tuple({0: samples} for _ in two)
    program = torch.export.export(there, move(two, device), dynamic_shapes=shapes)
    page = io.BytesIO()
    torch.export.save(program, page)
    write_whole(path, page.getbuffer())
    return path
