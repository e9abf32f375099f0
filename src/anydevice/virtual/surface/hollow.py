"""What is read from a hollow GPU: numbers are zero, and a printed tensor shows none."""

from collections.abc import Iterator
from typing import Any

import torch


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """Printing, which would look for the largest value."""
    printed: Any = torch._tensor_str._str

    def without_values(tensor: torch.Tensor, *, tensor_contents: Any = None) -> str:
        if not tensor.is_cuda or tensor_contents is not None:
            return str(printed(tensor, tensor_contents=tensor_contents))
        text = str(printed(tensor.detach().to("meta")))
        return text.replace("device='meta'", f"device='{tensor.device}'")

    yield torch._tensor_str, "_str", without_values
