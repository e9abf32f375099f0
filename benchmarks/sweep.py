"""What a sweep adds: python benchmarks/sweep.py

A batch of a hand-written loop with the tracker, and the same figures summed by hand as one
would; the start of a run in its own process, from the difference of long and short sweeps; and
`anydevice show` of 10,000 runs. Each figure is a median over rounds in which all take turns.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import anydevice as ad
from anydevice.sweep.records.records import RUN_FORMAT, Record, Sheet, enter, folder_of

ROUNDS, BATCHES, RUNS = 11, 2000, 10_000
MOST_BATCH_US, MOST_SHOW_S = 20.0, 2.0


def nothing(run: ad.Run) -> dict[str, float]:
    """An experiment that takes no time."""
    return {"loss": 1.0}


def batch_us() -> tuple[float, float]:
    """Microseconds of t.batch(loss, accuracy), and of the same sums by hand."""
    loss, right = torch.tensor(0.5, requires_grad=True) * 1, torch.tensor(0.25)
    tracked, by_hand = [], []
    with TemporaryDirectory() as folder:
        sweep = ad.Sweep(None, ad.grid(lr=[1]))
        with sweep.track(sweep.runs[0], folder) as t:
            for _ in range(ROUNDS):
                begin = time.perf_counter()
                for _ in range(BATCHES):
                    t.batch(loss=loss, accuracy=right, size=32)
                tracked.append((time.perf_counter() - begin) / BATCHES * 1e6)
                t.epoch()
                total, count, samples = torch.zeros(()), torch.zeros(()), 0
                begin = time.perf_counter()
                for _ in range(BATCHES):
                    total.add_(loss.detach(), alpha=32)
                    count.add_(right, alpha=32)
                    samples += 32
                by_hand.append((time.perf_counter() - begin) / BATCHES * 1e6)
    return statistics.median(tracked), statistics.median(by_hand)


def start_s() -> tuple[float, float]:
    """Seconds that one more run takes, and that a sweep of one run takes."""
    one, many = [], []
    for _ in range(3):
        for count, seconds in ((1, one), (21, many)):
            with TemporaryDirectory() as folder:
                begin = time.perf_counter()
                ad.Sweep(nothing, ad.grid(lr=list(range(count)))).run(folder, verbose=False)
                seconds.append(time.perf_counter() - begin)
    return (statistics.median(many) - statistics.median(one)) / 20, statistics.median(one)


def show_s() -> float:
    """Seconds of `anydevice show` for 10,000 runs of ten epochs."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        runs = ad.grid(lr=[i / 1000 for i in range(RUNS // 4)], n=[0, 1], device=["cpu", "cuda"])
        epochs = [
            {"epoch": e, "loss": 1 / e, "accuracy": e / 10, "seconds": 0.5} for e in range(1, 11)
        ]
        enter(folder, Sheet(["lr", "n", "device"], None, [run.key for run in runs]))
        for run in runs:
            record = Record(run.key, run.parameters, "done", epochs=epochs, seconds=5.0)
            folder_of(folder, run.key).mkdir()
            text = json.dumps({"format": RUN_FORMAT, **vars(record)})
            (folder_of(folder, run.key) / "record.json").write_text(text)
        seconds = []
        for _ in range(5):
            begin = time.perf_counter()
            command = [sys.executable, "-m", "anydevice", "show", name, "--sort", "accuracy"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - begin)
        return statistics.median(seconds)


def main() -> None:
    """Print the figures; exit code 1 if one is too much."""
    tracked, by_hand = batch_us()
    more, first = start_s()
    show = show_s()
    print(f"t.batch(loss, accuracy)     {tracked:.1f} µs a batch (aim: under {MOST_BATCH_US:.0f})")
    print(f"the same sums by hand       {by_hand:.1f} µs")
    print(f"one more run of a sweep     {more:.3f} s")
    print(f"a sweep of one run          {first:.2f} s (torch is imported once)")
    print(f"show of {RUNS:,} runs         {show:.2f} s (aim: under {MOST_SHOW_S:.0f})")
    print(f"load while measuring        {os.getloadavg()[0]:.1f}")
    sys.exit(tracked >= MOST_BATCH_US or show >= MOST_SHOW_S)


if __name__ == "__main__":
    main()
