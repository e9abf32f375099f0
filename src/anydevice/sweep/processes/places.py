"""The places for runs: how many run at a time, each with a GPU, several, or a share of one."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import torch

from anydevice.devices.choose import num_gpus
from anydevice.devices.host import cpu
from anydevice.errors import UsageError
from anydevice.sweep.grid import Run
from anydevice.sweep.jsonable import is_number
from anydevice.virtual import enabled


@dataclass(frozen=True)
class Place:
    """A place for one run: its GPUs, or its share of one."""

    gpus: tuple[int, ...] = ()
    share: float = 1.0
    named: bool = False  # the run names its GPU itself, by its index among all

    @property
    def visible(self) -> str | None:
        """CUDA_VISIBLE_DEVICES for the run, so that its own GPU is its first; None: all of them."""
        if self.named or not self.gpus or enabled() or not torch.version.cuda:
            return None
        all_of_them = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = all_of_them.split(",") if all_of_them else [str(i) for i in range(num_gpus())]
        return ",".join(names[gpu] for gpu in self.gpus)

    @property
    def current(self) -> int | None:
        """The virtual GPU that `cuda` is for the run, which sees all of them."""
        return self.gpus[0] if self.gpus and enabled() else None


class Places:
    """The places that are free."""

    def __init__(self, runs: Sequence[Run], workers: int | None, gpus: float | None) -> None:
        present = num_gpus() if any(gpu_of(run) is not None for run in runs) else 0
        self.share = _share(present, workers, gpus)
        self.workers = workers or max(1, int(present / self.share + 1e-9)) if self.share else 1
        self.left = [1.0] * present
        self.used = 0

    @property
    def threads(self) -> int | None:
        """How many threads each run has, so that all runs together use each core once."""
        return max(1, cpu().usable // self.workers) if self.workers > 1 else None

    def take(self, run: Run) -> Place | None:
        """A place for the run, or None while all are taken."""
        if self.used >= self.workers:
            return None
        wanted = gpu_of(run)
        if wanted is None or not self.left or not self.share:
            place = Place()
        else:
            free = [gpu for gpu in range(len(self.left)) if self._fits(gpu) and wanted in (-1, gpu)]
            count = 1 if wanted != -1 else max(1, int(self.share))
            if len(free) < count:
                return None
            free.sort(key=lambda gpu: -self.left[gpu])
            place = Place(tuple(free[:count]), min(1.0, self.share), named=wanted != -1)
        self.used += 1
        for gpu in place.gpus:
            self.left[gpu] -= place.share
        return place

    def give_back(self, place: Place) -> None:
        """Frees the place of a run that has ended."""
        self.used -= 1
        for gpu in place.gpus:
            self.left[gpu] += place.share

    def _fits(self, gpu: int) -> bool:
        return self.left[gpu] >= min(1.0, self.share) - 1e-9


def gpu_of(run: Run) -> int | None:
    """The index of the GPU that the run names, -1 for any, None for no GPU."""
    device = run.parameters.get("device", "auto")
    if device in ("cpu", "meta"):
        return None
    name, _, index = str(device).partition(":")
    return int(index) if name in ("cuda", "gpu") and index.isdecimal() else -1


def _share(present: int, workers: int | None, gpus: float | None) -> float:
    """The GPUs of one run: as asked, or else an equal share for each of the workers."""
    counted = isinstance(workers, int) and not isinstance(workers, bool)
    if workers is not None and (not counted or workers < 1):
        raise UsageError(f"expected 1 or more workers, got {workers!r}.")
    if gpus is None:
        return 1 / ceil(workers / present) if present and workers else 1.0
    if not is_number(gpus) or gpus < 0 or (gpus > 1 and gpus != int(gpus)):
        raise UsageError(
            "expected gpus, the GPUs of each run, as a share such as 0.5 or a whole number, got "
            f"{gpus!r}."
        )
    if gpus > present > 0:
        raise UsageError(
            f"expected a machine with {gpus:g} GPUs for each run, got one with {present}."
        )
    return gpus
