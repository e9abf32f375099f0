"""What a Trial's epoch takes on a GPU: over the usual loop, over a captured one, and compiled.

python benchmarks/trial_gpu.py --device cuda

On a virtual GPU (anydevice run benchmarks/trial_gpu.py) it runs too, with times of the CPU.
"""

import argparse
import statistics
import sys
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from trial import Epoch, Figure, Transformed, adam, by_trial, cnn, in_turns, show


def by_usual_loop(network: nn.Module, loader: DataLoader[Any], device: str) -> Epoch:
    """The loop that everybody writes for a GPU."""
    network.to(device)
    optimizer = adam(network.parameters())

    def epoch() -> float:
        begin = time.perf_counter()
        network.train()
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            F.cross_entropy(network(x), y).backward()
            optimizer.step()
        torch.accelerator.synchronize()
        return time.perf_counter() - begin

    return epoch


def by_graph(network: nn.Module, images: Tensor, labels: Tensor, size: int, device: str) -> Epoch:
    """A whole step captured once and replayed, the data on the GPU: as little host as can be."""
    network.to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.001, capturable=True)
    images, labels = images.to(device), labels.to(device)
    x, y = images[:size].float(), labels[:size].clone()

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(network(x), y).backward()
        optimizer.step()

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # PyTorch asks for a few steps before a capture
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad()
    with torch.cuda.graph(graph):
        step()

    def epoch() -> float:
        begin = time.perf_counter()
        for rows in torch.randperm(len(labels), device=device).split(size):
            x.copy_(images[rows]).sub_(73).div_(90)
            y.copy_(labels[rows])
            graph.replay()
        torch.accelerator.synchronize()
        return time.perf_counter() - begin

    return epoch


def gpu_figures(turns: int, samples: int, device: str) -> list[Figure]:
    """The same epoch on a GPU: over the usual loop, over a captured one, and compiled."""
    images = torch.randint(256, (samples, 1, 28, 28), dtype=torch.uint8)
    labels = torch.randint(10, (samples,))
    figures = []
    for size in (100, 1000):
        loader = DataLoader(Transformed(images, labels), batch_size=size, shuffle=True)
        data = (images, labels)
        epochs = {
            "trial": by_trial(cnn(), data, device, batch_size=size),
            "compiled": by_trial(cnn(), data, device, compile=True, batch_size=size),
            "graph": by_graph(cnn(), images, labels, size, device),
            "usual": by_usual_loop(cnn(), loader, device),
        }
        timed = in_turns(epochs, turns)
        for one, other, what, at_most in (
            ("trial", "usual", "over Dataset and DataLoader", 0.65),
            ("trial", "graph", "over a loop in a CUDA graph", None),
            ("compiled", "trial", "compiled, over not compiled", 1.0),
        ):
            ratio = statistics.median(a / b for a, b in zip(timed[one], timed[other], strict=True))
            figures.append(Figure(f"epoch, batch {size}, {what}", ratio, at_most, "×"))
    return figures


def main() -> int:
    """Ends with 1 if a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--samples", type=int, default=60_000, help="images of an epoch")
    given = parser.parse_args()
    figures = gpu_figures(given.turns, given.samples, given.device)
    print(f"on {torch.cuda.get_device_name(given.device)}")
    show(figures)
    return int(any(f.verdict == "FAIL" for f in figures))


if __name__ == "__main__":
    sys.exit(main())
