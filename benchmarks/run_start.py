"""What `anydevice run` adds to the start of a program: python benchmarks/run_start.py

A program that imports torch and makes one tensor, by itself and under `anydevice run`, in turns,
each in a fresh process. The library is built before. The figure is the difference of the medians.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from anydevice.virtual import build

PROGRAM = "import torch; torch.ones(1)\n"
PAIRS = 11
MOST_S = 0.5


def main() -> None:
    """Print both medians and what lies between them; exit code 1 if that is too much."""
    build.library()
    with TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(PROGRAM)
        plain = [sys.executable, str(program)]
        virtual = [sys.executable, "-m", "anydevice", "run", str(program)]
        for command in (plain, virtual):  # both once, for the caches
            seconds(command)
        alone, under = zip(*((seconds(plain), seconds(virtual)) for _ in range(PAIRS)), strict=True)
    added = statistics.median(under) - statistics.median(alone)
    print(f"python program.py          {statistics.median(alone):.3f} s (median of {PAIRS})")
    print(f"anydevice run program.py   {statistics.median(under):.3f} s")
    print(f"added                      {added:.3f} s (aim: under {MOST_S} s)")
    sys.exit(added >= MOST_S)


def seconds(command: list[str]) -> float:
    """How long a process takes from its start to its end."""
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
