"""The training benchmark: a small CNN over batch sizes, loader workers and devices."""

import functools
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from anydevice.data import shapes
from anydevice.devices.choose import DeviceLike, exact, num_gpus, pick
from anydevice.sweep.grid import Run, grid
from anydevice.sweep.results.results import Results
from anydevice.sweep.sweep import Sweep
from anydevice.train.history import History
from anydevice.train.trial import Trial

IMAGES, EPOCHS = 6000, 2


class OneByOne(Dataset[tuple[Tensor, Tensor]]):
    """Images that are prepared one by one, which is the work of a loader's workers."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index].float().sub_(73).div_(90), self.labels[index]


def small_cnn() -> nn.Module:
    """A network for ten classes of 28 × 28 grey pixels."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 12, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(192, 120), nn.ReLU(), nn.Linear(120, 60), nn.ReLU(), nn.Linear(60, 10),
    )  # fmt: skip


def experiment(run: Run, size: int = IMAGES) -> History:
    """One run: with its parameters, on its device."""
    images, labels = shapes(size, 100)[0][:]
    network = small_cnn()
    data = OneByOne(images, labels)
    loader = DataLoader(data, run.batch_size, shuffle=True, num_workers=run.num_workers)
    trial = Trial(network, torch.optim.Adam, "cross_entropy", metrics=["loss", "accuracy"])
    return trial.to(run.device).with_generators(loader).run(EPOCHS, verbose=False)


def training(
    devices: Sequence[DeviceLike] | None = None,
    folder: Path | None = None,
    batch_sizes: Sequence[int] = (100, 1000),
    workers: Sequence[int] = (0, 1, 2),
    verbose: bool = True,
    images: int = IMAGES,
) -> Results:
    """Trains on each device, one run after another, and gives the sweep's results."""
    named = devices or ["cpu", *(["auto"] if num_gpus() else [])]
    places = [str(exact(pick(device))) for device in named]
    runs = grid(batch_size=batch_sizes, num_workers=workers, device=list(dict.fromkeys(places)))
    folder = folder or Path(mkdtemp(prefix="anydevice-training-"))
    sized = functools.partial(experiment, size=images)
    return Sweep(sized, runs).run(folder, workers=1, verbose=verbose)
