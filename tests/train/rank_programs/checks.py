"""Checks that all ranks run together; each rank writes which of them failed there."""

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from anydevice.train.trial import Trial

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = sys.argv[1]  # "cpu" or "cuda", which is the rank's own GPU

_checks: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    """One of the program's checks."""
    _checks.append(function)
    return function


def run_all() -> None:
    """Runs the checks in the order in which they are written; a number: every so many of them."""
    failures, chosen = {}, _checks[:: int(sys.argv[2])]
    for function in chosen:
        try:
            function()
        except Exception:
            failures[function.__name__] = traceback.format_exc()
            break  # the ranks may be at different places now
    Path(os.environ["REPORTS"], f"{RANK}.json").write_text(json.dumps([len(chosen), failures]))


def equal(found: object, expected: object) -> None:
    """Fails with both, where they differ."""
    assert found == expected, f"expected {expected}, got {found}"


def close(found: list[float], expected: list[float], tolerance: float = 1e-5) -> None:
    """Fails with both, where they are further apart than rounding."""
    there = zip(found, expected, strict=True)
    near = all(abs(a - b) <= tolerance * max(1, abs(b)) for a, b in there)
    assert near, f"expected {expected}, got {found}"


def weights(trial: Trial) -> list[float]:
    """All of the network's, as one process has them."""
    wholes = [
        p.full_tensor() if hasattr(p, "full_tensor") else p for p in trial.network.parameters()
    ]
    return torch.cat([whole.detach().flatten().cpu() for whole in wholes]).tolist()
