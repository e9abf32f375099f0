"""Twelve runs of a small CNN, on the CPU and on a GPU that is not there, compared in a table.

anydevice run --gpu t4 examples/sweep.py
"""

from tempfile import mkdtemp

from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anydevice as ad


def cnn():
    """Two convolutions and three linear layers, for pictures of 28 × 28 pixels."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 12, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(192, 120), nn.ReLU(), nn.Linear(120, 60), nn.ReLU(),
        nn.Linear(60, 10),
    )  # fmt: skip


def experiment(run):
    """Called in a new process for each run; its random numbers are seeded by then."""
    pictures, _ = ad.data.shapes(train=600, test=100)
    data = TensorDataset(pictures.normalize(pictures.images), pictures.labels)
    batches = DataLoader(data, run.batch_size, shuffle=True, num_workers=run.num_workers)
    trial = ad.Trial(cnn(), "adam", "cross_entropy", metrics=["loss", "accuracy"])
    return trial.to(run.device).with_generators(batches).run(epochs=2, verbose=False)


if __name__ == "__main__":
    runs = ad.grid(batch_size=[20, 60, 200], num_workers=[0, 1], device=["cuda", "cpu"])
    folder = mkdtemp()  # use a folder that stays: the same call then resumes from there
    results = ad.Sweep(experiment, runs).run(folder)
    print(results.table(sort="accuracy"))
