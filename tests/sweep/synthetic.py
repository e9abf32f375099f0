"""Folders of records as a sweep leaves them, made up, to test the page and to look at it."""

import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anydevice.sweep.grid import Run, grid, key_of, names_of
from anydevice.sweep.records.records import Record, Sheet, enter, write

DEVICES = {
    "cpu": ("cpu", "AMD EPYC 7B13", False),
    "cuda": ("cuda:0", "NVIDIA H100 80GB HBM3", False),
    "virtual": ("cuda:0", "Tesla T4", True),
}
TRACEBACK = """Traceback (most recent call last):
  File "experiment.py", line 12, in experiment
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."""


def make_sweep(
    folder: Path, runs: Sequence[Run], *, epochs: int = 10, failed: Sequence[Run] = ()
) -> None:
    """Writes a record for each run; some have failed half way."""
    enter(folder, Sheet(names_of(runs), "experiment:train", [run.key for run in runs]))
    for run in runs:
        write(folder, make_record(run.parameters, epochs, run in failed))


def make_record(parameters: dict[str, Any], epochs: int, failed: bool = False) -> Record:
    """A record whose figures follow from its parameters, more or less."""
    key = key_of(parameters)
    chance = random.Random(key)
    device, device_name, virtual = DEVICES[parameters.get("device", "cpu")]
    batch = parameters.get("batch_size", 100)
    lr = parameters.get("lr", 0.01)
    speed = 9 if device_name.startswith("NVIDIA") else 0.9 if virtual else 1
    seconds = (0.4 + 900 / batch) / (speed if batch > 50 else 1.5) * chance.uniform(0.9, 1.1)
    rate = 0.25 * math.exp(-abs(math.log10(lr) + 2.2)) * chance.uniform(0.8, 1.2)
    figures = []
    for epoch in range(1, (epochs // 2 if failed else epochs) + 1):
        loss = 2.1 * math.exp(-rate * epoch) + 0.1 + chance.uniform(0, 0.05)
        figures.append({
            "epoch": epoch,
            "loss": loss,
            "accuracy": 1 - loss / 2.6,
            "val_loss": loss * 1.08 + chance.uniform(0, 0.05),
            "val_accuracy": 1 - loss / 2.5 - chance.uniform(0, 0.02),
            "seconds": seconds * chance.uniform(0.97, 1.03),
        })  # fmt: skip
    return Record(
        key=key,
        parameters=parameters,
        state="failed" if failed else "done",
        error=TRACEBACK if failed else None,
        epochs=figures,
        started="2026-11-21T14:00:00+00:00",
        seconds=seconds * len(figures) + 2.5,
        device=device,
        device_name=device_name,
        virtual=virtual,
        peak_bytes=None if device == "cpu" else int(2**28 + batch * 120_000),
        seed=0,
        git={"commit": "66dada2b1c", "dirty": True, "diff": "0f3a.diff"},
        versions={"python": "3.11.2", "torch": "2.13.0+cpu", "anydevice": "0.1.0"},
        host="laptop",
    )


def samples(folder: Path) -> None:
    """The sweeps that somebody looks at before a change of the page is called done."""
    lr = [float(f"{10 ** (-3 + i / 12):.3g}") for i in range(25)]
    sweeps = {
        "twelve": grid(batch_size=[100, 1000, 10000], num_workers=[0, 2], device=["cuda", "cpu"]),
        "virtual": grid(lr=[0.001, 0.01], batch_size=[64, 256, 1024], device=["virtual", "cpu"]),
        "two-hundred": grid(lr=lr, batch_size=[64, 128, 256, 512], device=["cuda", "cpu"]),
        "one": grid(lr=[0.01], batch_size=[100]),
        "failed": grid(lr=[0.001, 0.01, 0.1], batch_size=[64, 128]),
    }
    for name, runs in sweeps.items():
        make_sweep(folder / name, runs, failed=runs[:: 1 if name == "failed" else 9])


if __name__ == "__main__":
    samples(Path(sys.argv[1]))
