"""The whole story in a minute: the devices, a sweep over a CPU and a GPU, its table, its report."""

from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

import anydevice as ad
from anydevice.bench.training import OneByOne
from anydevice.sweep.grid import Run
from anydevice.sweep.page.page import report
from anydevice.tables import show
from anydevice.virtual.build import BuildError

CARD = "t4"  # of the GPU that is not there
IMAGES, TEST_IMAGES, EPOCHS = 3000, 1000, 5


def experiment(run: Run) -> list[dict[str, float]]:
    """A small CNN learns ten shapes, with the parameters and on the device of the run."""
    torch.set_num_threads(1)  # so small a network gains nothing from more
    train, test = ad.data.shapes(IMAGES, TEST_IMAGES)
    network = nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 12, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(192, 120), nn.ReLU(), nn.Linear(120, 60), nn.ReLU(), nn.Linear(60, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(network.parameters(), lr=run.lr)
    trial = ad.Trial(network, optimizer, "cross_entropy", metrics=["loss", "accuracy"])
    loader = DataLoader(
        OneByOne(*train[:]),
        run.batch_size,
        shuffle=True,
        num_workers=run.num_workers,
        persistent_workers=run.num_workers > 0,
    )
    unseen = DataLoader(OneByOne(*test[:]), 1000)
    trial.to(run.device).with_generators(loader, unseen)
    return trial.run(epochs=EPOCHS, verbose=False)


def demo(folder: Path) -> None:
    """Everything that `anydevice demo` prints; what its folder has already is not done again."""
    devices, about_them = _devices()
    show(ad.devices())
    print(f"\n{about_them}\n")
    runs = ad.grid(lr=[0.005], batch_size=[50, 200, 1000], num_workers=[0, 1], device=devices)
    sweep = ad.Sweep(experiment, runs)
    if not sweep.left(folder):
        print(f"The {len(runs)} runs in {folder} are done; remove it to see them done again.")
    show(sweep.run(folder).table())
    print(f"The report, with curves and durations: {report(folder)}")
    print(f"The program: {Path(__file__)}")


def _devices() -> tuple[list[str], str]:
    """The CPU and a GPU, which is made if there is none, and what is to be said of it."""
    both = ["cuda", "cpu"]
    if torch.cuda.is_available():
        return both, f"{torch.cuda.get_device_name()} is the GPU of this demonstration."
    try:
        ad.virtual.enable(1, CARD)
    except BuildError as error:
        return ["cpu"], f"There is no GPU, and none can be made, so the CPU runs alone: {error}"
    return both, (
        f"The {torch.cuda.get_device_name()} is not there: the CPU computes for it, so that\n"
        "programs for a GPU run. What it takes for an epoch is no GPU's speed."
    )
