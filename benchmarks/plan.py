"""How long `anydevice plan` takes, and how much of the host's memory, for four well-known networks.

python benchmarks/plan.py        the goal on a quiet machine: under 5 s and 600 MB each
"""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "tests/plan/train.py"
NETWORKS = {"vgg16": 128, "resnet50": 64, "bert": 16, "gpt2-xl": 2}
REPEATS = 3


def planned(network: str, batch: int) -> tuple[float, float, float]:
    """Seconds, those of the processor, and megabytes of the largest process."""
    words = ("--gpu", "a100-80gb", str(PROGRAM), "--network", network, "--batch-size", str(batch))
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "anydevice", "plan", *words], stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{network}: exit code {process.returncode}"
    busy = usage.ru_utime + usage.ru_stime
    return time.perf_counter() - begun, busy, usage.ru_maxrss * 1024 / 1e6


def main() -> None:
    """Print a line for each network."""
    print(
        f"{'network':10} {'batch':>5}  seconds  of the processor  megabytes   (best of {REPEATS})"
    )
    for network, batch in NETWORKS.items():
        runs = [planned(network, batch) for _ in range(REPEATS)]
        seconds, busy = min(run[0] for run in runs), min(run[1] for run in runs)
        megabytes = max(run[2] for run in runs)
        print(f"{network:10} {batch:5}  {seconds:7.1f}  {busy:16.1f}  {megabytes:9.0f}", flush=True)


if __name__ == "__main__":
    main()
