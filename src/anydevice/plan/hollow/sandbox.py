"""A plan leaves no trace on the disk: checkpoints of zeros must not be taken for training."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch


def _nothing(*arguments: Any, **options: Any) -> None:
    return None


@contextmanager
def nothing_written() -> Iterator[None]:
    """Inside the block torch, safetensors and a Trial save nothing, and a Trial begins anew."""
    import safetensors.torch

    from anydevice.train.checkpoint.checkpoints import Checkpoints

    with ExitStack() as stack:
        for owner, name in (
            (sys.modules["torch"], "save"),
            (sys.modules["torch.serialization"], "save"),
            (safetensors.torch, "save_file"),
            (safetensors.torch, "save_model"),
            (Checkpoints, "add"),
            (Checkpoints, "newest"),
        ):
            stack.enter_context(patch.object(owner, name, _nothing))
        yield
