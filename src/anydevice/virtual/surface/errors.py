"""torch.AcceleratorError: CUDA's text, and a note that says which value was wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from anydevice.virtual import core


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """PyTorch makes the error of what native code throws; the note waits in native code."""
    kind: Any = torch.AcceleratorError
    initialise = kind.__init__
    take: Any = core.library().anydevice_take_note

    def noted(self: Any, *arguments: Any) -> None:
        initialise(self, *arguments)
        if note := take().decode():
            self.add_note(f"On this virtual GPU: {note}")

    yield kind, "__init__", noted
