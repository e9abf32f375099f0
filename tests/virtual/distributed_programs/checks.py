"""Checks that all ranks run together; each rank writes which of them failed there."""

import json
import os
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

warnings.simplefilter("ignore", FutureWarning)

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
GPU = torch.device("cuda", RANK)
PATIENCE = timedelta(seconds=60)  # a rank that failed leaves the others waiting

_checks: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    """One of the program's checks."""
    _checks.append(function)
    return function


def begin(backend: str | None = "nccl", **options: object) -> None:
    """Joins the ranks, each on the GPU of its number; another time, if they were joined before."""
    if dist.is_initialized():
        dist.destroy_process_group()
    torch.cuda.set_device(GPU)
    dist.init_process_group(backend, timeout=PATIENCE, **options)


def run_all() -> None:
    """Runs the checks in the order in which they are written."""
    failures = {}
    for function in _checks:
        try:
            function()
        except Exception:
            failures[function.__name__] = traceback.format_exc()
    reports = Path(os.environ["REPORTS"])
    Path(reports, f"{RANK}.json").write_text(json.dumps([len(_checks), failures]))


def on_gpu(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor on this rank's GPU."""
    return torch.tensor(values, device=GPU).to(dtype)


def equal(found: object, expected: object) -> None:
    """Fails with both, where they differ."""
    assert found == expected, f"expected {expected}, got {found}"


def error_of(function: Callable[[], object]) -> tuple[str, str]:
    """The kind and text of the error that the function raises."""
    try:
        function()
    except Exception as error:
        return type(error).__name__, str(error)
    raise AssertionError("expected an error, got none")
