"""The page of 10,000 finished runs: how long it takes to write, and how large it is.

python benchmarks/report.py
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from anydevice.sweep.grid import grid
from anydevice.sweep.records.records import RECORD, RUN_FORMAT, RUNS, Record, Sheet, enter

RUNS_EACH_WAY, EPOCHS, ROUNDS = 1000, 10, 5


def make_sweep(folder: Path) -> None:
    """Writes 10,000 records, without waiting for the disk at each."""
    lr = [(1 + i) / 1e4 for i in range(RUNS_EACH_WAY)]
    runs = grid(lr=lr, batch_size=[64, 128, 256, 512, 1024], device=["cuda", "cpu"])
    enter(folder, Sheet(["lr", "batch_size", "device"], None, [run.key for run in runs]))
    for run in runs:
        losses = [run.lr / (i + 1) for i in range(EPOCHS)]
        epochs = [
            {"epoch": i, "loss": loss, "accuracy": 1 - loss, "seconds": 1.5}
            for i, loss in enumerate(losses, 1)
        ]
        record = Record(run.key, run.parameters, "done", None, epochs, device=run.device)
        path = folder / RUNS / run.key
        path.mkdir(parents=True)
        (path / RECORD).write_text(json.dumps({"format": RUN_FORMAT, **vars(record)}))


def main() -> None:
    """Make the sweep once, write its page several times."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "sweep")
        make_sweep(folder)
        seconds = []
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            subprocess.run([sys.executable, "-m", "anydevice", "report", folder], check=True)
            seconds.append(time.perf_counter() - begun)
        size = (folder / "report.html").stat().st_size
        print(f"{statistics.median(seconds):.1f} s, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
