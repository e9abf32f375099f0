"""anydevice in a minute: the devices, a sweep over a CPU and a GPU, its table, its report."""

from pathlib import Path

import torch
from torch.utils.data import DataLoader

import anydevice as ad
from anydevice.bench.training import OneByOne, small_cnn
from anydevice.sweep.grid import Run
from anydevice.sweep.page.page import report
from anydevice.tables import show
from anydevice.virtual.build import BuildError

CARD = "t4"  # the virtual GPU, where there is no real one
IMAGES, TEST_IMAGES, EPOCHS = 3000, 1000, 5


def experiment(run: Run) -> list[dict[str, float]]:
    """A small CNN learns ten shapes, with the parameters and on the device of the run."""
    torch.set_num_threads(1)  # so small a network gains nothing from more
    train, test = ad.data.shapes(IMAGES, TEST_IMAGES)
    network = small_cnn()
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
    """Everything that `anydevice demo` prints; runs that its folder has are not done again."""
    devices, about_them = _devices()
    show(ad.devices())
    print(f"\n{about_them}\n")
    runs = ad.grid(lr=[0.005], batch_size=[50, 200, 1000], num_workers=[0, 1], device=devices)
    sweep = ad.Sweep(experiment, runs)
    if not sweep.left(folder):
        print(f"The {len(runs)} runs in {folder} are done; remove the folder to do them again.")
    show(sweep.run(folder).table())
    print(f"The report, with curves and durations: {report(folder)}")
    print(f"The program: {Path(__file__)}")


def _devices() -> tuple[list[str], str]:
    """The CPU and a GPU, virtual if there is no real one, and a sentence about it."""
    both = ["cuda", "cpu"]
    if torch.cuda.is_available():
        return both, f"{torch.cuda.get_device_name()} is the GPU of this demo."
    try:
        ad.virtual.enable(1, CARD)
    except BuildError as error:
        return [
            "cpu"
        ], f"There is no GPU, and no virtual one can be built, so only the CPU runs: {error}"
    return both, (
        f"The {torch.cuda.get_device_name()} is virtual: the CPU computes for it, so that\n"
        "programs for a GPU run. The duration of its epochs is not a GPU's speed."
    )
