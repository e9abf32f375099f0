"""What a Trial costs over the loop written by hand, and what others cost.

python benchmarks/trial.py

Everything runs in this process, in turns; a figure is the median over the turns. Steps are on one
thread, epochs on all. The others are measured where they are installed: pip install torchbearer
pytorch-ignite accelerate lightning pillow.
"""

import argparse
import logging
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import anydevice as ad

Epoch = Callable[[], float]  # seconds of one epoch
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Figure:
    """A measured figure, and the most it may be (None: it is shown to be compared with)."""

    what: str
    measured: float
    at_most: float | None
    unit: str

    @property
    def verdict(self) -> str:
        """Whether what was promised is kept."""
        return "" if self.at_most is None else "pass" if self.measured <= self.at_most else "FAIL"


# ---- the programs ----


def mlp() -> nn.Module:
    """Three small layers."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5)
    )


def cnn() -> nn.Module:
    """The seed's network: conv 6, conv 12, fc 120-60-10, on 28 × 28 grey pixels."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 12, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(192, 120), nn.ReLU(), nn.Linear(120, 60), nn.ReLU(), nn.Linear(60, 10)),
    )


def small_batches(count: int) -> list[Batch]:
    """Batches of the small layers."""
    return [(torch.randn(64, 20), torch.randint(5, (64,))) for _ in range(count)]


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The same optimizer for everyone."""
    return torch.optim.Adam(parameters, lr=0.001)


def by_hand(network: nn.Module, batches: list[Batch]) -> Epoch:
    """The loop that everybody writes."""
    optimizer = adam(network.parameters())

    def epoch() -> float:
        begin = time.perf_counter()
        network.train()
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(network(x), y).backward()
            optimizer.step()
        return time.perf_counter() - begin

    return epoch


def steps_by_hand(network: nn.Module) -> Generator[None, Batch, None]:
    """A step for each batch that is sent, with loss and accuracy summed as a Trial does."""
    optimizer = adam(network.parameters())
    network.train()
    total, right, samples = torch.zeros(()), torch.zeros((), dtype=torch.int64), 0
    while True:
        x, y = yield
        optimizer.zero_grad()
        output = network(x)
        loss = F.cross_entropy(output, y)
        loss.backward()
        optimizer.step()
        rows = y.size(0)
        total.add_(loss.detach(), alpha=rows)
        right += (output.argmax(1) == y).sum()
        samples += rows


def by_trial(
    network: nn.Module,
    data: object,
    device: str = "cpu",
    *,
    metrics: tuple[str, ...] = ("loss",),
    compile: bool = False,
    **how: Any,
) -> Epoch:
    """A Trial with a loss that is measured."""
    trial = ad.Trial(network, adam, "cross_entropy", metrics=metrics).to(device)
    trial.with_options(compile=compile).with_generators(data, **how)

    def epoch() -> float:
        begin = time.perf_counter()
        trial.run(trial.epoch + 1, verbose=False)
        return time.perf_counter() - begin

    return epoch


def by_torchbearer(network: nn.Module, batches: list[Batch]) -> Epoch:
    """Its Trial, with the loss as its metric."""
    from torchbearer import Trial

    optimizer = adam(network.parameters())
    trial = Trial(network, optimizer, nn.CrossEntropyLoss(), metrics=["loss"], verbose=0)
    trial.with_train_generator(batches, steps=len(batches))
    epochs = iter(range(1, 10_000))

    def epoch() -> float:
        begin = time.perf_counter()
        trial.run(next(epochs))
        return time.perf_counter() - begin

    return epoch


def by_ignite(network: nn.Module, batches: list[Batch]) -> Epoch:
    """Its supervised trainer, whose output (the loss) it reads each step."""
    from ignite.engine import create_supervised_trainer

    trainer = create_supervised_trainer(network, adam(network.parameters()), nn.CrossEntropyLoss())

    def epoch() -> float:
        begin = time.perf_counter()
        trainer.run(batches, max_epochs=1)
        return time.perf_counter() - begin

    return epoch


def by_hand_with(
    backward: Callable[[Tensor], object],
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: list[Batch],
) -> Epoch:
    """The loop by hand, but for its backward."""

    def epoch() -> float:
        begin = time.perf_counter()
        for x, y in batches:
            optimizer.zero_grad()
            backward(F.cross_entropy(network(x), y))
            optimizer.step()
        return time.perf_counter() - begin

    return epoch


def by_accelerate(network: nn.Module, batches: list[Batch]) -> Epoch:
    """The loop by hand, with its backward and its prepared optimizer."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    prepared = accelerator.prepare(network, adam(network.parameters()))
    return by_hand_with(accelerator.backward, *prepared, batches)


def by_fabric(network: nn.Module, batches: list[Batch]) -> Epoch:
    """The loop by hand, with its backward and its set-up optimizer."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    prepared = fabric.setup(network, adam(network.parameters()))
    return by_hand_with(fabric.backward, *prepared, batches)


def by_lightning(network: nn.Module, batches: list[Batch]) -> Epoch:
    """Its Trainer, without a logger, bar or checkpoint."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def training_step(self, batch: Batch, index: int) -> Tensor:
            return F.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return adam(self.network.parameters())

        def on_train_epoch_start(self) -> None:
            self.begin = time.perf_counter()

        def on_train_epoch_end(self) -> None:
            self.seconds = time.perf_counter() - self.begin

    def epoch() -> float:
        module = Module()
        off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", **dict.fromkeys(off, False))
        trainer.fit(module, DataLoader(batches, batch_size=None))
        return module.seconds

    return epoch


OTHERS = {
    "Fabric": ("lightning", by_fabric),
    "ignite": ("ignite", by_ignite),
    "accelerate": ("accelerate", by_accelerate),
    "torchbearer": ("torchbearer", by_torchbearer),
    "Lightning": ("lightning", by_lightning),
}


class Transformed(Dataset[tuple[Tensor, int]]):
    """The usual Dataset: a picture at a time, made a tensor and normalised by transforms."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images.squeeze(1), labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture, label = Image.fromarray(self.images[index].numpy()), int(self.labels[index])
        return normalised(to_tensor(picture), (0.286,), (0.353,)), label


def to_tensor(picture: Image.Image) -> Tensor:
    """What such a transform does for each picture."""
    pixels = torch.from_numpy(np.array(picture, copy=True)).view(*picture.size[::-1], 1)
    return pixels.permute(2, 0, 1).contiguous().to(torch.float32).div(255)


def normalised(image: Tensor, mean: tuple[float, ...], deviation: tuple[float, ...]) -> Tensor:
    """What such a transform does for each image, statistics and their check included."""
    centre = torch.as_tensor(mean, dtype=image.dtype, device=image.device).view(-1, 1, 1)
    scale = torch.as_tensor(deviation, dtype=image.dtype, device=image.device).view(-1, 1, 1)
    if (scale == 0).any():
        raise ValueError("a deviation is zero")
    return image.clone().sub_(centre).div_(scale)


# ---- what is measured ----


def in_turns(epochs: dict[str, Epoch], turns: int) -> dict[str, list[float]]:
    """Seconds of each, turn by turn, after one that nobody counts."""
    for epoch in epochs.values():
        epoch()
    timed: dict[str, list[float]] = {name: [] for name in epochs}
    for turn in range(turns):
        order = list(epochs.items())
        for name, epoch in order if turn % 2 else reversed(order):
            timed[name].append(epoch())
    return timed


class Alternating:
    """Batches for a Trial; before it gets one, the loop by hand makes a step with another.

    So both meet the same machine, step by step, and the caches that the other has left.
    """

    def __init__(self) -> None:
        self.batches, self.others = small_batches(200), small_batches(200)
        self.hand = steps_by_hand(mlp())
        next(self.hand)
        self.added = list[float]()  # seconds, of each pair of steps

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        for batch, other in zip(self.batches, self.others, strict=True):
            begin = time.perf_counter()
            self.hand.send(other)
            between = time.perf_counter()
            yield batch
            self.added.append(time.perf_counter() - between - (between - begin))


def added_to_a_step() -> float:
    """Seconds: the median over 600 pairs of steps of two networks just made."""
    pairs = Alternating()
    epoch = by_trial(mlp(), pairs, metrics=("loss", "accuracy"))
    epoch()
    pairs.added.clear()
    for _ in range(3):
        epoch()
    return statistics.median(pairs.added)


def measured_step_figure(turns: int) -> Figure:
    """µs that a step with loss and accuracy takes more than by hand with the same sums.

    Where two networks lie in memory decides over some µs, so each turn makes new ones.
    """
    added = statistics.median(added_to_a_step() for _ in range(2 * turns)) * 1e6
    return Figure("Trial, the same with loss and accuracy on both sides", added, 5, "µs")


def step_figures(turns: int) -> list[Figure]:
    """µs that a step of a tiny network takes more than by hand."""
    steps = 500
    batches = small_batches(steps)
    found = {"hand": by_hand(mlp(), batches), "Trial": by_trial(mlp(), batches)}
    for name, (package, make) in OTHERS.items():
        if find_spec(package):
            found[name] = make(mlp(), batches)
        else:
            print(f"{name} is not installed, so it is not compared with.", file=sys.stderr)
    timed = in_turns(found, turns)
    hand = timed.pop("hand")
    figures = []
    for name, seconds in timed.items():
        added = [(a - b) / steps * 1e6 for a, b in zip(seconds, hand, strict=True)]
        at_most = 10 if name == "Trial" else None
        figures.append(
            Figure(f"{name}, a step of a tiny MLP, added", statistics.median(added), at_most, "µs")
        )
    return figures


def epoch_figures(turns: int, samples: int) -> list[Figure]:
    """An epoch of the seed's network over its pure compute, and over the usual loop."""
    images = torch.randint(256, (samples, 1, 28, 28), dtype=torch.uint8)
    labels = torch.randint(10, (samples,))
    figures = []
    for size in (100, 1000):
        first = ((images[:size].float() - 73) / 90, labels[:size])
        pure = by_hand(cnn(), [first] * (samples // size))
        trial = by_trial(cnn(), (images, labels), batch_size=size)
        loader = DataLoader(Transformed(images, labels), batch_size=size, shuffle=True)
        usual = by_hand(cnn(), loader)  # type: ignore[arg-type]
        timed = in_turns({"pure": pure, "trial": trial, "usual": usual}, turns)
        for other, at_most in (("pure", 1.02), ("usual", 0.65)):
            ratio = statistics.median(
                a / b for a, b in zip(timed["trial"], timed[other], strict=True)
            )
            what = "pure compute" if other == "pure" else "Dataset and DataLoader"
            figures.append(Figure(f"epoch, batch {size}, over {what}", ratio, at_most, "×"))
    return figures


def show(figures: list[Figure]) -> None:
    """The figures as a table."""
    table = Table("figure", "at most", "measured", "")
    for f in figures:
        allowed = "" if f.at_most is None else f"{f.at_most:g}"
        table.add_row(f.what, allowed, f"{f.measured:.3f} {f.unit}", f.verdict)
    Console().print(table)


def main() -> int:
    """Ends with 1 if a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=9, help="turns of each figure")
    parser.add_argument("--samples", type=int, default=60_000, help="images of an epoch")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    figures = step_figures(given.turns)
    measured = measured_step_figure(given.turns)
    torch.set_num_threads(threads)
    figures += [measured, *epoch_figures(max(3, given.turns // 3), given.samples)]
    show(figures)
    others = [f for f in figures if f.unit == "µs" and f.at_most is None]
    quicker = [f for f in others if f.measured <= figures[0].measured]
    return int(any(f.verdict == "FAIL" for f in figures) or bool(quicker))


if __name__ == "__main__":
    sys.exit(main())
