"""Random numbers: torch.cuda.default_generators is filled by `_cuda_init`, as on a real build."""

from typing import Any


def names(gpus: int) -> dict[str, Any]:
    """What torch._C calls them."""
    return {}
