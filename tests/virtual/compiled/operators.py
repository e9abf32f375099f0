"""PyTorch's own database of ops, each compiled on a virtual GPU and as it is written.

`python -m tests.virtual.compiled.operators NUMBER` prints which of so many ops differ, as JSON:
those that fail on the GPU where the CPU's compiled op does not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.testing import assert_close

from anydevice import virtual

WITHOUT_VALUES = ("empty", "new_empty")  # what they give is not determined


def sampled(number: int) -> list[Any]:
    """So many ops in float32, spread evenly over the database."""
    from torch.testing._internal.common_methods_invocations import op_db

    known = [
        info
        for info in op_db
        if torch.float32 in info.supported_dtypes("cuda")
        and not info.name.startswith(WITHOUT_VALUES)
    ]
    return [known[place * len(known) // number] for place in range(number)]


def differences(ops: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Each op that fails compiled on the GPU and not on the CPU, with the error's first line."""
    for info in ops:
        if (error := failure(info, "cuda")) and not failure(info, "cpu"):
            yield info.formatted_name, error


def failure(info: Any, device: str) -> str:
    """Why the compiled op differs from the op itself; nothing if it does not, or cannot be had."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    try:
        sample = next(iter(info.sample_inputs(device, torch.float32)))
        expected = called(info, sample)
    except Exception:  # refused without torch.compile too
        return ""
    try:
        assert_close(called(torch.compile(info.op), sample), expected, equal_nan=True)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return ""


def called(op: Any, sample: Any) -> Any:
    """The result, with the same random numbers each time, and its own inputs."""
    given = torch.utils._pytree.tree_map_only(
        torch.Tensor, torch.clone, (sample.input, sample.args, sample.kwargs)
    )
    torch.manual_seed(1)
    with torch.no_grad():
        return op(given[0], *given[1], **given[2])


if __name__ == "__main__":
    torch.set_num_threads(1)
    virtual.enable()
    found = {}
    for name, error in differences(sampled(int(sys.argv[1]))):
        found[name] = error
        print(name, error, file=sys.stderr, flush=True)
    print(json.dumps(found))
