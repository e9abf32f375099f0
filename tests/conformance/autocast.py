"""PyTorch's autocast lists: what each op computes in under `torch.autocast("cuda")`."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch.testing._internal.autocast_test_lists import AutocastTestLists, TestAutocast

from tests.conformance.agree import DisagreementError

HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
# Where each list's ops are found; the lists of methods have no module.
MODULES = {"torch": torch, "nn": torch._C._nn, "linalg": torch._C._linalg, "methods": None}


@cache
def lists() -> AutocastTestLists:
    torch.manual_seed(0)
    return AutocastTestLists(torch.device("cuda:0"))


def cases() -> Iterator[tuple[str, str]]:
    for dtype in HALVES:
        for name, entries in vars(lists()).items():
            # As PyTorch's own test does: bfloat16 for these lists alone, and no odd arguments.
            if dtype == "bfloat16" and not name.endswith("_fp16"):
                continue
            for i, (op, args, *_) in enumerate(entries):
                if isinstance(args, tuple):
                    yield f"{name}.{op}.{i}", dtype


def autocast(name: str, dtype: str, limit: int | None) -> Iterator[Callable[[], bool]]:
    which, op, index = name.split(".")
    entry = getattr(lists(), which)[int(index)]
    if which == "banned":
        yield lambda: refused(entry, HALVES[dtype])
    else:
        yield lambda: same(which, op, entry, HALVES[dtype])


def same(which: str, op: str, entry: tuple[Any, ...], half: torch.dtype) -> bool:
    """PyTorch's own test: the dtype it names, and the bits of the op called with casts by hand."""
    args, rest = entry[1], list(entry[2:])
    wide = [x for x in rest if isinstance(x, torch.dtype)]
    named = next((x for x in rest if isinstance(x, dict)), {})
    runs_as = half if which.endswith("_fp16") else torch.float32
    test = TestAutocast("_run_autocast_outofplace")
    test._run_autocast_outofplace(
        op, args, runs_as, "cuda", wide[0] if wide else None, MODULES[which.split("_")[0]], named,
        amp_dtype=half,
    )  # fmt: skip
    return True


def refused(entry: tuple[Any, ...], half: torch.dtype) -> bool:
    op, args, module = entry
    with torch.autocast("cuda", dtype=half):
        try:
            getattr(module, op)(*args)
        except RuntimeError as error:
            if "unsafe to autocast" in str(error):
                return True
            raise DisagreementError(f"refused with other words: {error}") from error
    raise DisagreementError("autocast refuses this op on a card")
