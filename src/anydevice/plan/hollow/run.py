"""One hollow run: a program's first steps on a hollow GPU, and what they took."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import torch

from anydevice.devices.catalogue import Card, card
from anydevice.errors import UsageError
from anydevice.plan.context import Context
from anydevice.plan.hollow.attention import preferred
from anydevice.plan.hollow.blocks import WORKSPACE, Block, peak
from anydevice.plan.hollow.compiled import AS_WRITTEN, COMPILED, EAGER_FLEX
from anydevice.plan.hollow.failures import (
    CannotPlanError,
    DoesNotFitError,
    all_on_the_host,
    explained,
    failed_later,
    on_the_host,
    without_steps,
)
from anydevice.plan.hollow.phases import Phase, combined, growth
from anydevice.plan.hollow.sandbox.checkpoints import sparse
from anydevice.plan.hollow.sizes import SHARE, AssumedSizes
from anydevice.plan.hollow.steps import FORWARD, STEP, UPDATE, WHOLE
from anydevice.plan.hollow.values import Branches, reads_answered
from anydevice.plan.hollow.watch import Enough, StepWatch
from anydevice.plan.time.predict import Prediction, predict
from anydevice.plan.time.work import Exchange, Work
from anydevice.text import size_text
from anydevice.virtual import core
from anydevice.virtual.compiled.tracing import Traced
from anydevice.virtual.machine import enabled, virtual_gpus

AMPLE = 1 << 50
MOST_ROUNDING = 0.05  # of what is allocated
ALLOCATED, RESERVED = "allocated_bytes.all.peak", "reserved_bytes.all.peak"
REQUESTED = "requested_bytes.all.peak"
ROCM = (
    "The figures of an AMD card are those of PyTorch's allocator and the card's rates; what ROCm's "
    "own libraries (hipBLAS, MIOpen) take for their work is not modelled."
)

FALLS = (
    "Assumed: what float() reads at {} goes down, as a loss does; a hollow GPU has no values, and "
    "with zeros the program ended earlier."
)
MAY_END_EARLY = (
    "float() reads zero at {}, since a hollow GPU has no values: if a loop or a branch depends on "
    "it, the program may have ended early. With .item(), a number is known to be unknown."
)
STOPPED = (
    "The last forward passes did the same, so the program was stopped there: what would come after "
    "them, such as a decoder, is not in the answer."
)
BESIDE = (
    "The program trains in several processes on the GPU. The answer is for one of them alone: each "
    "takes as much again, except for the network that they share, and has a CUDA context."
)


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
    context: Context
    device: int  # the fullest one, which the figures describe
    samples: int | None  # in the first batch
    cudnn: int
    blocks: list[Block] = field(repr=False)
    step_marks: list[int]
    each: list[tuple[int, int, int]] = field(default_factory=list)  # those three of each GPU
    unit: str = STEP  # what the steps are: Note [What is a step]
    notes: list[str] = field(default_factory=list)  # what was assumed, as sentences
    kinds: dict[str, str] = field(default_factory=dict, repr=False)  # the class of each module
    work: Work | None = field(default=None, repr=False)  # of the last step
    step_samples: int | None = None  # in all batches of a step
    parts: list[tuple[Work, int]] = field(default_factory=list, repr=False)  # in place of `work`
    phases: list[Phase] = field(default_factory=list, repr=False)
    tokens: int | None = None  # in the first batch, if that is of whole numbers
    part: Any = field(default=None, repr=False)  # the rank that it played among others
    attention: list[str] = field(default_factory=list)  # its kernels: "flash", "cudnn" …
    traced: Traced = field(default_factory=Traced, repr=False)  # what Dynamo made of it
    networks: list[str] = field(default_factory=list, repr=False)  # what --compile compiled
    floats: list[str] = field(default_factory=list)  # lines where float() read what is unknown
    limits_itself: bool = False  # whether the program set a share of the memory that it may take
    verdict: str = "yes"  # whether it fits: "maybe", if that depends on the context's size; "no"

    @property
    def fits(self) -> bool:
        """Whether it surely fits."""
        return self.verdict == "yes"

    @property
    def card(self) -> Card:
        """The GPU's entry in the catalogue."""
        return card(self.gpu)

    def of_each_gpu(self) -> list[HollowRun]:
        """The same run with the figures of one GPU after the other."""
        if len(self.each) < 2:
            return [self]
        runs = []
        for device, (allocated, reserved, requested) in enumerate(self.each):
            own = replace(self, allocated=allocated, reserved=reserved, requested=requested)
            own.device = device
            runs.append(own)
        return runs

    @property
    def units(self) -> str:
        """`steps`, or `backward passes`."""
        return f"{self.unit}es" if self.unit.endswith("s") else f"{self.unit}s"

    @property
    def counted(self) -> str:
        """`3 steps`, or `1 forward pass`."""
        return f"{self.steps} {self.units if self.steps > 1 else self.unit}"

    @property
    def device_bytes(self) -> int:
        """What nvidia-smi would show of the process."""
        return self.reserved + self.context.value

    @property
    def device_range(self) -> tuple[int, int]:
        """The same with the smallest and with the largest context."""
        return self.reserved + self.context.low, self.reserved + self.context.high

    @property
    def margin(self) -> int:
        """The memory that is left; negative if it takes more than the GPU has."""
        return self.card.memory - self.device_bytes

    @property
    def exchanges(self) -> list[Exchange]:
        """The collectives of the last step."""
        works = [work for work, _ in self.parts] or ([self.work] if self.work else [])
        return [entry for work in works for entry in work if isinstance(entry, Exchange)]

    def predicted(self, samples: int | None = None) -> Prediction | None:
        """How long a step takes; with `samples`, how many it trains on per second."""
        if self.parts:
            each = [(predict(work, self.card, gpus=self.gpus), n) for work, n in self.parts]
            return combined(each, samples)
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
    context: Context | None = None,
    assume_zeros: bool = False,
    assume_true: float = SHARE,
    inference: bool = False,
    sdpa: str | None = None,
    name: str = "the program",
    brief: bool = False,
    compiles: str = AS_WRITTEN,
    falling: bool = False,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> HollowRun:
    """Calls the function on a hollow GPU until `steps` steps are done.

    >>> hollow_run(train, "t4").device_bytes  # doctest: +SKIP

    The GPU has the card's memory, or `memory`, less the context. DoesNotFitError if that is ever
    too little. `brief`: without each block and the time. `compiles`: AS_WRITTEN, EAGER or WHOLE.
    `falling`: float() reads ever smaller numbers, and no zeros.
    `around`: the context in which the function is called; what it gives is the run's `part`.
    """
    kind = card(gpu)
    taken = context or Context.of(kind)
    running = _Running(function, kind, gpus, steps, taken, name, brief)
    running.assume_zeros, running.assume_true = assume_zeros, assume_true
    running.inference, running.around, running.sdpa = inference, around, sdpa
    running.compiles, running.falling = compiles, falling
    try:
        return running.on(kind.memory if memory is None else memory)
    except torch.OutOfMemoryError as error:
        raise DoesNotFitError from error


@dataclass
class _Running:
    function: Callable[[], object]
    card: Card
    gpus: int
    steps: int
    context: Context
    name: str
    brief: bool
    assume_zeros: bool = False
    assume_true: float = SHARE
    inference: bool = False
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    part: Any = None
    sdpa: str | None = None
    compiles: str = AS_WRITTEN
    falling: bool = False
    floats: list[str] = field(default_factory=list)

    def on(self, memory: int) -> HollowRun:
        """Runs on a card with this memory; OutOfMemoryError if that is ever too little."""
        first = enabled() is None
        with virtual_gpus(self.gpus, self.card.kind, hollow=True):
            left = [_left_behind(device) if first else {} for device in range(self.gpus)]
            for device, other in enumerate(left):
                room = memory + other.get(RESERVED, 0)
                core.library().anydevice_memory_set_capacity(device, room, self.context.value)
            watch = StepWatch(
                self.card,
                self.steps,
                timed=not self.brief,
                inference=self.inference,
                sizes=AssumedSizes(self.assume_true),
                compiles=self.compiles,
            )
            with preferred(self.sdpa), self._as_on_the_card():
                notes = self._run(watch)
            stats = [_peaks(device, other) for device, other in enumerate(left)]
            if not any(one.get(ALLOCATED) for one in stats):
                raise all_on_the_host(self.name)
            if _refusals(self.gpus) > watch.workspaces.refused:
                raise torch.OutOfMemoryError  # the program caught it
            gc.collect()
            limits = [torch.cuda.get_per_process_memory_fraction(gpu) for gpu in range(self.gpus)]
        fullest = max(range(self.gpus), key=lambda device: stats[device][RESERVED])
        run = HollowRun(
            gpu=self.card.kind,
            gpus=self.gpus,
            steps=len(watch.step_marks),
            wanted=self.steps,
            allocated=stats[fullest][ALLOCATED],
            reserved=stats[fullest][RESERVED],
            requested=stats[fullest][REQUESTED],
            context=self.context,
            device=fullest,
            each=[(one[ALLOCATED], one[RESERVED], one[REQUESTED]) for one in stats],
            samples=watch.batches.samples,
            cudnn=watch.workspaces.cudnn,
            blocks=[] if self.brief else watch.ledger.blocks,
            step_marks=watch.step_marks,
            unit=watch.steps.unit,
            notes=notes,
            kinds=watch.modules.kinds,
            work=watch.work,
            step_samples=watch.step_samples,
            parts=watch.parts,
            phases=[] if self.brief else watch.phases,
            part=self.part,
            tokens=watch.batches.tokens,
            attention=list(watch.attention.taken),
            traced=watch.compiled.traced,
            networks=watch.compiled.networks,
            floats=self.floats,
            limits_itself=min(limits) < 1,
        )
        if not self.brief:
            check_rounding(run)
        return run

    def _as_on_the_card(self) -> AbstractContextManager[Any]:
        """Programs that ask how much memory is free get the answer of the card."""

        def mem_get_info(device: Any = None) -> tuple[int, int]:
            taken = torch.cuda.memory_reserved(device) + self.context.value
            return max(0, self.card.memory - taken), self.card.memory

        owners = (torch.cuda, torch.cuda.memory)
        stack = ExitStack()
        for owner in owners:
            stack.enter_context(patch.object(owner, "mem_get_info", mem_get_info))
        return stack

    def _run(self, watch: StepWatch) -> list[str]:
        """Runs the program to the end of its steps; returns what was assumed."""
        branches = Branches(lambda: watch.steps.has_stepped, self.assume_zeros)
        branches.falling = self.falling
        notes = []
        try:
            with (
                watch.watching(),
                sparse(),
                reads_answered(branches, watch.sizes.known),
                self.around() as self.part,
            ):
                self.function()
        except (Enough, KeyboardInterrupt, torch.OutOfMemoryError) as end:
            if not isinstance(end, Enough):
                raise
            if watch.steps.unit == FORWARD and not self.inference:
                notes.append(STOPPED)
        except BaseException as error:
            watch.steps.end()
            if not self._has_answer(watch, error):
                raise explained(error, self.name) from error
            if not isinstance(error, SystemExit) or error.code:
                notes.append(failed_later(error, self.name, watch.steps))
        watch.steps.end()
        self.floats += branches.floats
        if watch.on_host:
            raise on_the_host(watch.on_host)
        if not watch.steps.ends:
            raise without_steps(self.name, watch.last_line, watch.backward)
        return notes + self._assumed(watch, branches)

    def _has_answer(self, watch: StepWatch, error: BaseException) -> bool:
        """Whether what came before the program's failure is an answer."""
        if isinstance(error, SystemExit) and not error.code:
            return bool(watch.steps.ends)
        trained = watch.steps.marks[STEP] or watch.steps.marks[UPDATE]
        passed = watch.steps.marks[FORWARD] and not watch.steps.trains
        return bool(trained or passed) and not isinstance(error, UsageError)

    def _assumed(self, watch: StepWatch, branches: Branches) -> list[str]:
        """Sentences about what the answer takes for granted."""
        notes = list(watch.sizes.notes)
        if watch.repeats:
            notes.append(
                f"A step has {watch.repeats} backward passes. One step was run, and four passes "
                "of the next; the others are taken to be like the last two, which were alike."
            )
        notes += growth(watch.steps)
        if getattr(self.part, "sharing", False):
            notes.append(BESIDE)
        if watch.repeated.note:
            notes.append(watch.repeated.note)
        if watch.steps.unit not in (STEP, UPDATE) and not watch.steps.inference:
            what = {FORWARD: "its forward passes", WHOLE: "all of it"}
            unit = what.get(watch.steps.unit, "its backward passes")
            notes.append(f"The program steps no optimizer, so the answer is for {unit}.")
        if branches.checks:
            notes.append(f"Assumed: the checks of values at {_listed(branches.checks)} pass.")
        if branches.differing:
            where = _listed(branches.differing)
            notes.append(f"Assumed: the real numbers that {where} compares are not equal.")
        if branches.undecided:
            notes.append(
                f"Assumed: no branch is taken at {_listed(branches.undecided)}, which depends on "
                "what was read from the GPU, and a hollow GPU has no values; --assume-zeros takes "
                "each as for zero."
            )
        if branches.floats and self.falling:
            notes.append(FALLS.format(_listed(branches.floats)))
        elif branches.floats and len(watch.steps.ends) < self.steps and not watch.repeats:
            notes.append(MAY_END_EARLY.format(_listed(branches.floats)))
        notes += watch.compiled.notes
        if watch.compiled.why_not:
            notes.append(COMPILED.format(watch.compiled.why_not))
        if watch.compiled.eager_flex and not watch.compiled.used:
            notes.append(EAGER_FLEX)
        if said := watch.attention.note(self.sdpa):
            notes.append(said)
        if self.card.name.startswith("AMD"):
            notes.append(ROCM)
        if watch.workspaces.emulated:
            notes.append(
                f"bf16: the {self.card.name} has no bf16 units, so its products run at the rate of "
                "float32 or slower; fp16 is what it has."
            )
        return notes


def _listed(lines: Iterable[str]) -> str:
    """`train.py:10 and train.py:12`."""
    *most, last = lines
    return f"{', '.join(most)} and {last}" if most else last


def _left_behind(device: int) -> dict[str, int]:
    """What tensors take that this process has left of earlier GPUs: they are not the program's.

    torch.cuda reports nothing before the program has initialized it.
    """
    if not _present(device)[ALLOCATED]:
        return {}
    gc.collect()
    torch._C._cuda_emptyCache()
    torch._C._cuda_resetPeakMemoryStats(device)
    return _present(device)


def _present(device: int) -> dict[str, int]:
    """What is taken now, under the names of the peaks."""
    stats: Any = torch._C._cuda_memoryStats(device)
    keys = (ALLOCATED, RESERVED, REQUESTED)
    return {key: stats[key.partition(".")[0]]["all"]["current"] for key in keys}


def _peaks(device: int, left: dict[str, int]) -> dict[str, int]:
    """The peaks of a device without what was left behind; nothing if it was not used."""
    stats = torch.cuda.memory_stats(device)
    keys = [key for key in (ALLOCATED, RESERVED, REQUESTED) if key in stats]
    return {key: stats[key] - left.get(key, 0) for key in keys}


def check_rounding(run: HollowRun) -> None:
    """Bytes that no block explains would be reported as rounding: then the figures are wrong.

    The allocator rounds a block up to 512 bytes, and leaves at most 1 MiB of a large one unused.
    """
    held = peak(run.blocks, run.device)
    rounding = run.allocated - held.bytes
    if rounding > max(MOST_ROUNDING * run.allocated, len(held.blocks) << 20):
        raise CannotPlanError(
            f"expected {size_text(run.allocated)} of allocated memory to be explained by tensors, "
            f"got {size_text(rounding)} more than that. This is a bug in anydevice: please report "
            "it with the program."
        )


def _refusals(gpus: int) -> int:
    """How often the GPUs ran out of memory."""
    return sum(int(torch.cuda.memory_stats(device)["num_ooms"]) for device in range(gpus))
