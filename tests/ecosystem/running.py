"""A program of `programs/`, which knows nothing of anydevice, on virtual GPUs and on the CPU."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..forked import python

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
QUIET = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def both(program: str, *words: str, gpus: int = 1) -> tuple[Any, Any]:
    """What a program reports on `cuda` and on `cpu`, which is its first argument."""
    path = str(PROGRAMS / program)
    with ThreadPoolExecutor() as side_by_side:
        there = side_by_side.submit(on_gpus, path, "cuda", *words, gpus=gpus)
        here = side_by_side.submit(on_cpu, path, "cpu", *words)
    return report(there.result()), report(here.result())


def on_gpus(*words: str, gpus: int = 1, folder: Path = ROOT) -> str:
    """What a program prints on virtual GPUs."""
    run = ["-m", "anydevice", "run", "--gpus", str(gpus), "--gpu", "t4"]
    return _printed([sys.executable, *run, *words], folder)


def on_cpu(*words: str) -> str:
    """What it prints without them."""
    return _checked(python(*words, cwd=ROOT, env=_environment()))


def report(printed: str) -> Any:
    """The line of JSON that a program prints."""
    (only,) = reports(printed)
    return only


def reports(printed: str) -> list[Any]:
    """The lines of JSON that a program's processes print."""
    lines = printed.replace('}{"', '}\n{"').splitlines()  # two processes, one line
    return [json.loads(line) for line in lines if line.startswith('{"')]


def _printed(command: list[str], folder: Path) -> str:
    return _checked(
        subprocess.run(
            command, cwd=folder, env=_environment(), capture_output=True, text=True, check=False
        )
    )


def _environment() -> dict[str, str]:
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, **QUIET, "PATH": beside}  # where torchrun and accelerate are


def _checked(done: subprocess.CompletedProcess[str]) -> str:
    said = f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    assert done.returncode == 0, f"it ended with {done.returncode}\n{said}"
    return done.stdout
