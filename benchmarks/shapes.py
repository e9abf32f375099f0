"""How hard the drawn shapes are: a small CNN against a linear model, after one and two epochs.

python benchmarks/shapes.py
"""

import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from rich.console import Console

import anydevice as ad
from anydevice.tables import Table

BATCH = 100


def convolutions() -> nn.Module:
    """The seed's network: conv 6, conv 12, fc 120-60-10."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 12, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(192, 120), nn.ReLU(), nn.Linear(120, 60), nn.ReLU(), nn.Linear(60, 10),
    )  # fmt: skip


def linear() -> nn.Module:
    """One weight for each pixel and class."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def accuracies(network: nn.Module, lr: float, train: ad.data.Images, test: ad.data.Images) -> list:
    """The share of test images told rightly after each of two epochs."""
    optimizer, after = torch.optim.Adam(network.parameters(), lr=lr), []
    for _ in range(2):
        for picked in torch.randperm(len(train)).split(BATCH):
            images, labels = train[picked]
            optimizer.zero_grad()
            F.cross_entropy(network(train.normalize(images)), labels).backward()
            optimizer.step()
        with torch.no_grad():
            told = network(test.normalize(test.images)).argmax(1)
        after.append((told == test.labels).float().mean().item())
    return after


def main() -> None:
    """Draw, train, print."""
    begun = time.perf_counter()
    train, test = ad.data.shapes()
    table = Table(("network", "lr", "1 epoch", "2 epochs"), right=("1 epoch", "2 epochs"))
    table.title = f"{len(train) + len(test)} images drawn in {time.perf_counter() - begun:.1f} s"
    for make, lr in ((convolutions, 0.001), (convolutions, 0.01), (linear, 0.001)):
        torch.manual_seed(0)
        after = accuracies(make(), lr, train, test)
        table.rows.append((make.__name__, str(lr), *(f"{share:.3f}" for share in after)))
    Console().print(table)


if __name__ == "__main__":
    main()
