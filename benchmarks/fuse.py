"""32 small networks trained as one program, against one after another, on one CPU core.

python benchmarks/fuse.py

Both sides do whole epochs in this process, on one thread, in turns; a figure is the median of the
ratios of neighbours. The processes that a sweep starts for runs of their own are not counted.
"""

import argparse
import statistics
import sys
import time

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import anydevice as ad
from anydevice.sweep.fuse.process import draw_orders
from anydevice.sweep.fuse.training import Together

RUNS, AT_LEAST = 32, 6.0
OPTIMIZERS = {"SGD, momentum": torch.optim.SGD, "Adam": torch.optim.Adam}


def mlp() -> nn.Module:
    """Three small layers."""
    return nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5)
    )


def trials(optimizer: str, batch_size: int, samples: int) -> list[ad.Trial]:
    """The same networks each time, with a learning rate each, on the same data."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, 20, generator=generator)
    made = []
    for number in range(RUNS):
        torch.manual_seed(number)
        more = {"momentum": 0.9} if optimizer.startswith("SGD") else {}
        trial = ad.Trial(
            mlp(),
            lambda p, lr=0.001 * (number + 1), more=more: OPTIMIZERS[optimizer](p, lr=lr, **more),
            "cross_entropy",
            metrics=["loss", "accuracy"],
        )
        made.append(trial.with_generators((x, x[:, :5].argmax(1)), batch_size=batch_size))
        draw_orders(made[-1])
    return made


def ratio(optimizer: str, batch_size: int, steps: int, turns: int) -> float:
    """How many times as fast an epoch of all as one is."""
    alone = trials(optimizer, batch_size, batch_size * steps)
    as_one = trials(optimizer, batch_size, batch_size * steps)
    together, ratios = Together(as_one), []
    for _ in range(turns + 1):
        begin = time.perf_counter()
        for trial in alone:
            trial.run(trial.epoch + 1, verbose=False)
        middle = time.perf_counter()
        together.epoch()
        ratios.append((middle - begin) / (time.perf_counter() - middle))
    together.end()
    differ = [
        float((a - b).detach().abs().max())
        for one, other in zip(alone, as_one, strict=True)
        for a, b in zip(one.network.parameters(), other.network.parameters(), strict=True)
    ]
    if max(differ) > 1e-3:
        sys.exit(f"The weights of the two differ by {max(differ)}: nothing to compare.")
    return statistics.median(ratios[1:])


def main() -> int:
    """Ends with 1 if what was promised is not kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5, help="turns of each figure")
    parser.add_argument("--steps", type=int, default=200, help="steps of an epoch")
    given = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(f"{RUNS} MLPs (20-64-64-5) as one", "at least", "times as fast", "")
    kept = True
    for optimizer in OPTIMIZERS:
        for batch_size in (16, 32, 64):
            measured = ratio(optimizer, batch_size, given.steps, given.turns)
            promised = batch_size == 32
            kept &= measured >= AT_LEAST or not promised
            verdict = "" if not promised else "pass" if measured >= AT_LEAST else "FAIL"
            allowed = f"{AT_LEAST:g}" if promised else ""
            table.add_row(f"{optimizer}, batch {batch_size}", allowed, f"{measured:.1f}", verdict)
    Console().print(table)
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
