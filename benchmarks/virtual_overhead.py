"""What a virtual GPU costs over the CPU: training steps, and one small op.

python benchmarks/virtual_overhead.py

Both sides run in this process, in turns, and each figure is a median over pairs of neighbours, so
that a machine that slows down slows both. The small op is measured in processor time, which other
processes do not lengthen. Each figure is shown with its quartiles, and fails only if the
lower quartile is over the limit: then the machine's noise cannot be the reason. FakeGPU's figure is
quoted from its own measurement.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

import anydevice.virtual

QUOTED = "up to 8.9"  # FakeGPU: a step over a CPU step, as it states itself; not measured here
OPS = 2000


@dataclass(frozen=True)
class Figure:
    """A median with its quartiles, and the most it may be (None: nothing was promised)."""

    what: str
    low: float
    measured: float
    high: float
    at_most: float | None
    unit: str

    @classmethod
    def of(cls, what: str, each: Sequence[float], at_most: float | None, unit: str) -> "Figure":
        """The figure of one number a pair."""
        return cls(what, *statistics.quantiles(each, n=4, method="inclusive"), at_most, unit)

    @property
    def verdict(self) -> str:
        """Whether what was promised is kept, as far as these pairs can tell."""
        if self.at_most is None:
            return ""
        return "pass" if self.low <= self.at_most else "FAIL"


class Convolutions(nn.Module):
    """The seed's network: conv 6, conv 12, fc 120-60-10, on 28 × 28 grey pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 12, 5)
        self.fc1, self.fc2, self.out = nn.Linear(192, 120), nn.Linear(120, 60), nn.Linear(60, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Ten scores for each image."""
        t = F.max_pool2d(F.relu(self.conv1(images)), 2)
        t = F.max_pool2d(F.relu(self.conv2(t)), 2).flatten(1)
        return self.out(F.relu(self.fc2(F.relu(self.fc1(t)))))


def perceptron() -> nn.Module:
    """Three linear layers on the same images."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(),
        nn.Linear(128, 10),
    )  # fmt: skip


def training_step(make: Callable[[], nn.Module], batch: int, device: str) -> Callable[[], float]:
    """One step of Adam as a program writes it: each device gets the optimizer's own defaults."""
    torch.manual_seed(0)
    network = make().to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    images = torch.randn(batch, 1, 28, 28).to(device)
    labels = torch.randint(10, (batch,)).to(device)

    def step() -> float:
        loss = F.cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """How long one call takes."""
    begun = clock()
    work()
    return clock() - begun


def in_turns(
    cpu: Callable[[], object],
    gpu: Callable[[], object],
    pairs: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Seconds of both, pair by pair, the one that goes first changing each time."""
    timed = partial(seconds, clock=clock)
    for _ in range(3):
        cpu(), gpu()
    return [
        [timed(cpu), timed(gpu)] if i % 2 else [timed(gpu), timed(cpu)][::-1] for i in range(pairs)
    ]


def step_ratios(make: Callable[[], nn.Module], batch: int, pairs: int) -> list[float]:
    """Steps on the virtual GPU over steps on the CPU, of two networks with equal numbers."""
    cpu, gpu = (training_step(make, batch, device) for device in ("cpu", "cuda"))
    if cpu() != gpu():
        sys.exit("The first step's loss is another on the virtual GPU: nothing to compare.")
    return [b / a for a, b in in_turns(cpu, gpu, pairs)]


def small_op_us(pairs: int) -> list[float]:
    """What an addition of two 1-element tensors takes more, in µs."""

    def additions(device: str) -> None:
        a = ones[device]
        for _ in range(OPS):
            torch.add(a, a)

    ones = {device: torch.ones(1, device=device) for device in ("cpu", "cuda")}
    both = partial(additions, "cpu"), partial(additions, "cuda")
    timed = in_turns(*both, pairs, clock=time.thread_time)
    return [(gpu - cpu) / OPS * 1e6 for cpu, gpu in timed]


def figures(pairs: int) -> list[Figure]:
    """Everything that is measured."""
    ratio = "× a CPU step"
    return [
        Figure.of("CNN, batch 100", step_ratios(Convolutions, 100, pairs * 3), 1.02, ratio),
        Figure.of("CNN, batch 1000", step_ratios(Convolutions, 1000, pairs), 1.00, ratio),
        Figure.of("MLP, batch 100", step_ratios(perceptron, 100, pairs * 3), None, ratio),
        Figure.of("MLP, batch 1000", step_ratios(perceptron, 1000, pairs), None, ratio),
        Figure.of("one small op, added", small_op_us(pairs), 0.6, "µs"),
    ]


def show(measured: list[Figure]) -> None:
    """The table for a person."""
    table = Table("figure", "at most", "median", "quartiles", "", "FakeGPU (quoted)")
    for f in measured:
        allowed = "" if f.at_most is None else f"{f.at_most:g}"
        quoted = QUOTED if f.unit.startswith("×") else ""
        quartiles = f"{f.low:.3f} – {f.high:.3f}"
        table.add_row(f.what, allowed, f"{f.measured:.3f} {f.unit}", quartiles, f.verdict, quoted)
    Console().print(table)


def main() -> int:
    """Ends with 1 if a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=60, help="pairs of runs for each figure")
    parser.add_argument("--json", action="store_true", help="for a program instead of a person")
    given = parser.parse_args()
    anydevice.virtual.enable(gpus=1, gpu="h100")
    measured = figures(given.pairs)
    if given.json:
        print(json.dumps([asdict(f) | {"verdict": f.verdict} for f in measured]))
    else:
        show(measured)
    return int(any(f.verdict == "FAIL" for f in measured))


if __name__ == "__main__":
    sys.exit(main())
