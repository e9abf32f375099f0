"""One hollow run: a program's first steps on a hollow GPU, and what they took."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch

from anydevice.devices.catalogue import Card, card
from anydevice.plan.hollow import workspaces
from anydevice.plan.hollow.blocks import WORKSPACE, Block, peak
from anydevice.plan.hollow.failures import (
    DoesNotFitError,
    explained,
    on_the_host,
    without_steps,
)
from anydevice.plan.hollow.sandbox.checkpoints import sparse
from anydevice.plan.hollow.values import branches_refused
from anydevice.plan.hollow.watch import Enough, StepWatch
from anydevice.plan.time.predict import Prediction, predict
from anydevice.plan.time.work import Work
from anydevice.virtual import core
from anydevice.virtual.machine import virtual_gpus

AMPLE = 1 << 50
ALLOCATED, RESERVED = "allocated_bytes.all.peak", "reserved_bytes.all.peak"
REQUESTED = "requested_bytes.all.peak"


@dataclass
class HollowRun:
    """What the steps took: peaks in bytes, and each block of memory."""

    gpu: str
    gpus: int
    steps: int
    wanted: int  # steps that were asked for
    allocated: int  # as torch.cuda.max_memory_allocated() reports it
    reserved: int
    requested: int  # the part of it that was asked for, before rounding
    context: int
    fits: bool
    device: int  # the fullest one, which the figures describe
    samples: int | None
    cudnn: int
    blocks: list[Block] = field(repr=False)
    step_marks: list[int]
    kinds: dict[str, str] = field(default_factory=dict, repr=False)  # the class of each module
    work: Work | None = field(default=None, repr=False)  # of the last step

    @property
    def card(self) -> Card:
        """The GPU's entry in the catalogue."""
        return card(self.gpu)

    @property
    def device_bytes(self) -> int:
        """What nvidia-smi would show of the process."""
        return self.reserved + self.context

    def predicted(self, samples: int | None = None) -> Prediction | None:
        """How long a step takes; with `samples`, how many it trains on per second."""
        return predict(self.work, self.card, samples, gpus=self.gpus) if self.work else None

    @property
    def tensors(self) -> int:
        """The peak of tensors alone, without rounding and workspaces."""
        return peak(self.blocks, self.device, without=(WORKSPACE,)).bytes


def hollow_run(
    function: Callable[[], object],
    gpu: str,
    *,
    steps: int = 3,
    gpus: int = 1,
    memory: int | None = None,
    assume_zeros: bool = False,
    name: str = "the program",
    only_if_it_fits: bool = False,
) -> HollowRun:
    """Calls the function on a hollow GPU until `steps` steps of an optimizer are done.

    >>> hollow_run(train, "t4").device_bytes  # doctest: +SKIP

    If the card has too little memory, the function runs once more on one with plenty, to find
    what it takes; with `only_if_it_fits`, DoesNotFitError is raised instead.
    """
    kind = card(gpu)
    running = _Running(function, kind, gpus, steps, assume_zeros, name, only_if_it_fits)
    try:
        return running.on(memory or kind.memory)
    except torch.OutOfMemoryError:
        gc.collect()
    if only_if_it_fits:
        raise DoesNotFitError
    run = running.on(AMPLE)
    run.fits = False
    return run


@dataclass
class _Running:
    function: Callable[[], object]
    card: Card
    gpus: int
    steps: int
    assume_zeros: bool
    name: str
    brief: bool = False  # without each block

    def on(self, memory: int) -> HollowRun:
        """Runs on a card with this memory; OutOfMemoryError if that is ever too little."""
        with virtual_gpus(self.gpus, self.card.kind, hollow=True):
            for device in range(self.gpus):
                core.library().anydevice_memory_set_capacity(device, memory, workspaces.CONTEXT)
            watch = StepWatch(self.card, self.steps, timed=not self.brief)
            self._run(watch)
            stats = [torch.cuda.memory_stats(device) for device in range(self.gpus)]
            if _refusals(self.gpus) > watch.refused:
                raise torch.OutOfMemoryError  # the program caught it
            gc.collect()
        fullest = max(range(self.gpus), key=lambda device: stats[device][RESERVED])
        return HollowRun(
            gpu=self.card.kind,
            gpus=self.gpus,
            steps=len(watch.step_marks),
            wanted=self.steps,
            allocated=stats[fullest][ALLOCATED],
            reserved=stats[fullest][RESERVED],
            requested=stats[fullest][REQUESTED],
            context=workspaces.CONTEXT,
            fits=True,
            device=fullest,
            samples=watch.samples,
            cudnn=watch.cudnn,
            blocks=[] if self.brief else watch.ledger.blocks,
            step_marks=watch.step_marks,
            kinds=watch.kinds,
            work=watch.work,
        )

    def _run(self, watch: StepWatch) -> None:
        values = nullcontext() if self.assume_zeros else branches_refused()
        try:
            with watch.watching(), sparse(), values:
                self.function()
        except (Enough, KeyboardInterrupt, torch.OutOfMemoryError) as end:
            if not isinstance(end, Enough):
                raise
        except BaseException as error:
            if not watch.step_marks or not isinstance(error, SystemExit):
                raise explained(error, self.name) from error
        if watch.on_host:
            raise on_the_host(watch.on_host)
        if not watch.step_marks:
            raise without_steps(self.name, watch.last_line, watch.backward)


def _refusals(gpus: int) -> int:
    """How often the GPUs ran out of memory."""
    return sum(int(torch.cuda.memory_stats(device)["num_ooms"]) for device in range(gpus))
