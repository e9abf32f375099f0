"""Seven small trainings that `tests/kills.py` kills: each always ends with the same bits."""

import hashlib
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import anydevice as ad
from anydevice import virtual
from anydevice.sweep.results.results import Results
from anydevice.train.callbacks import Callback
from anydevice.train.history import SPEED

RANKS = {"ddp": 2, "fsdp": 2}  # those of several processes
KINDS = ("tensors", "workers", "persistent", "amp", "ddp", "fsdp", "sweep")
EPOCHS = 3


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Samples with noise that the loader's workers draw."""

    def __init__(self, x: Tensor, y: Tensor, noise: float) -> None:
        self.x, self.y, self.noise = x, y, noise

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.x[row] + self.noise * torch.randn(4), self.y[row]


class Met(Callback):
    """Leaves a file for each rank that has met the others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_start(self, trial: ad.Trial) -> None:
        if trial.ranks:
            (self.folder / f"met-{trial.ranks.rank}").touch()


def data_of(kind: str, x: Tensor, y: Tensor) -> Any:
    """The tensors, or a loader with workers; persistent ones start anew, and so draw no noise."""
    if kind not in ("workers", "persistent"):
        return x, y
    keep = kind == "persistent"
    samples = Noisy(x, y, 0.0 if keep else 0.1)
    return DataLoader(samples, 8, shuffle=True, num_workers=2, persistent_workers=keep)


def trained(kind: str, folder: Path) -> list[Any]:
    """Bits of the weights and the figures after a run that takes up what is in the folder."""
    if kind == "amp":
        virtual.enable(1)
    torch.manual_seed(0)
    x = torch.randn(48, 4)
    y = (x.sum(1) > 0).long()
    layers = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2)
    network = nn.Sequential(*layers)
    metrics, callbacks = ["loss", "accuracy"], [Met(folder)]
    trial = ad.Trial(network, "adam", "cross_entropy", metrics, callbacks)
    trial.to(*(("cuda:0", "fp16") if kind == "amp" else ("cpu",)))
    if kind in RANKS:
        trial.with_options(strategy=kind)
    trial.with_generators(data_of(kind, x, y), (x, y), batch_size=8)
    trial.checkpoint(folder / "checkpoints", every=2).run(EPOCHS, verbose=False)
    return [bits_of(trial), figures_of(trial.history)]


def bits_of(trial: ad.Trial) -> str:
    digest = hashlib.sha256()
    for tensor in trial.whole_state().values():
        digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()


def figures_of(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k not in SPEED} for record in records]


# ---- a sweep ----


def experiment(run: Any) -> Any:
    """A loop by hand, or a trial with checkpoints."""
    return by_hand(run) if run.kind == "hand" else by_trial(run)


def by_hand(run: Any) -> Any:
    for epoch in range(EPOCHS):
        yield {"loss": run.lr + float(torch.rand(())), "accuracy": epoch / EPOCHS}


def by_trial(run: Any) -> Any:
    x = torch.randn(24, 4)
    network = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 2))
    trial = ad.Trial(network, "sgd", "cross_entropy")
    trial.with_generators((x, (x.sum(1) > 0).long()), batch_size=8)
    trial.checkpoint(run.folder / "checkpoints", every=1)
    return trial.run(EPOCHS, verbose=False)


def swept(folder: Path) -> list[Any]:
    """The sweep's table, without what differs by nature."""
    runs = ad.grid(lr=[0.1, 0.2], kind=["hand", "trial"])
    ad.Sweep(experiment, runs).run(folder / "sweep", workers=2, verbose=False)
    return table_of(folder)


def table_of(folder: Path) -> list[Any]:
    results = Results.of(folder / "sweep")
    assert not results.damaged, results.damaged
    return [[r.parameters, r.state, figures_of(r.epochs), r.seed] for r in results]


def outcome(kind: str, folder: Path) -> list[Any]:
    """What a training of this kind ends with."""
    return swept(folder) if kind == "sweep" else trained(kind, folder)


def as_rank(rank: int, world: int, port: int) -> None:
    """What torchrun tells a process."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
