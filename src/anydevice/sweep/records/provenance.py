"""Where a run's results come from: the commit and the changes to it, the versions, the machine."""

import hashlib
import platform
import subprocess
from pathlib import Path
from typing import Any

from anydevice.files import write_whole
from anydevice.sweep.records.records import disk_errors
from anydevice.version import __version__

DIFFS = "diffs"


def provenance(folder: Path, code: Path) -> dict[str, Any]:
    """What the records of one call have in common; `code` is the folder of the experiment."""
    return {"git": git(folder, code), "versions": versions(), "host": platform.node()}


def versions() -> dict[str, str]:
    """The versions of what decides a result."""
    import numpy
    import torch

    return {
        "anydevice": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "os": platform.platform(),
    }


def git(folder: Path, code: Path) -> dict[str, Any] | None:
    """The commit, and the name of the file in FOLDER/diffs with the uncommitted changes."""
    commit = _git(code, "rev-parse", "HEAD")
    if commit is None:
        return None
    diff = _git(code, "diff", "HEAD", "--no-ext-diff", "--no-color") or b""
    name = f"{hashlib.sha256(diff).hexdigest()[:16]}.patch" if diff.strip() else None
    if name and not (folder / DIFFS / name).exists():
        with disk_errors(folder / DIFFS / name):
            (folder / DIFFS).mkdir(exist_ok=True)
            write_whole(folder / DIFFS / name, diff)
    return {"commit": commit.decode().strip(), "dirty": bool(name), "diff": name}


def _git(code: Path, *arguments: str) -> bytes | None:
    """What git prints; None where there is no repository, no commit, or no git."""
    try:
        done = subprocess.run(["git", "-C", str(code), *arguments], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
