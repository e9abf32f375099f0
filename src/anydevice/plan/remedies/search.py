"""What would make a trial fit: each change is run on hollow GPUs, so that its effect is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rich.text import Text

from anydevice.devices.catalogue import card
from anydevice.errors import UsageError
from anydevice.plan.context import Context
from anydevice.plan.hollow.blocks import ACTIVATIONS, peak
from anydevice.plan.hollow.gpus import HollowGPUs
from anydevice.plan.hollow.run import HollowRun
from anydevice.plan.remedies import changes
from anydevice.plan.time.predict import Prediction
from anydevice.tables import Shown, Table
from anydevice.text import UNSET, duration_text, size_text
from anydevice.train.loop.precision import HALVES
from anydevice.train.trial import Trial

PARTS = (2, 4, 8)
STEPS = 2  # from the second on, all are alike
Change = Callable[[Trial], None]
NOT_TRIED = (
    "Not tried: an 8-bit Adam (bitsandbytes). It keeps about 2 bytes of state per weight, not 8, "
    "but its kernels run on real GPUs only."
)


@dataclass(frozen=True)
class Attempt:
    """A change to try: its name, how to write it, and on how many GPUs."""

    name: str
    how: str
    change: Change
    cards: int = 1

    @property
    def label(self) -> tuple[str, str, int]:
        """The part of it that an answer shows."""
        return self.name, self.how, self.cards


@dataclass(frozen=True)
class Remedy:
    """A change that was tried, and its effect.

    Attributes:
        name: What was changed.
        how: How to make the change.
        cards: How many GPUs it takes.
        device_bytes: The memory of the fullest GPU; None if the change could not be run.
        fits: Whether it fits.
        time: The predicted time of a step.
        why_not: Why it could not be run; empty if it was.
        estimated: Whether it was not run: then `device_bytes` is the least that it would be.
        attention: The kernels that attention took.
    """

    name: str
    how: str
    cards: int
    device_bytes: int | None
    fits: bool
    time: Prediction | None
    why_not: str = ""
    estimated: bool = False
    attention: list[str] = field(default_factory=list)

    @property
    def card_seconds(self) -> float:
        """What a step costs: its seconds times the GPUs that it takes."""
        return self.time.seconds * self.cards if self.time else float("inf")

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "how": self.how,
            "cards": self.cards,
            "device_bytes": self.device_bytes,
            "fits": self.fits,
            "time": self.time.to_dict() if self.time else None,
            "why_not": self.why_not or None,
            "estimated": self.estimated,
        }


@dataclass(repr=False)
class Remedies(Shown):
    """All changes that were tried, or estimated, on one kind of GPU.

    Attributes:
        gpu: The kind of GPU.
        as_it_is: The program or trial without any change.
        tried: The changes: those that fit first, the cheapest first.
        note: A sentence below the table.
    """

    gpu: str
    as_it_is: Remedy
    tried: list[Remedy] = field(default_factory=list)
    note: str = NOT_TRIED

    @property
    def best(self) -> Remedy | None:
        """The cheapest that fits."""
        return next((remedy for remedy in self.tried if remedy.fits), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        tried = [remedy.to_dict() for remedy in self.tried]
        return {"gpu": self.gpu, "as_it_is": self.as_it_is.to_dict(), "tried": tried}

    def table(self) -> Table:
        """One row each."""
        figures = ("device bytes", "step", "difference")
        table = Table(("change", "GPUs", "fits", *figures, "how"), right=("GPUs", *figures))
        known = card(self.gpu)
        table.title = f"What would help on {known.name} ({size_text(known.memory)})"
        for remedy in (self.as_it_is, *self.tried):
            table.rows.append(self._row(remedy))
        return table

    def _row(self, remedy: Remedy) -> tuple[str, ...]:
        if remedy.estimated:
            size = f"~ {size_text(remedy.device_bytes)}"
            likely = "likely" if remedy.fits else "NO"
            return (remedy.name, str(remedy.cards), likely, size, UNSET, UNSET, remedy.how)
        if remedy.time is None:
            return (remedy.name, str(remedy.cards), UNSET, UNSET, UNSET, UNSET, remedy.why_not)
        before = self.as_it_is.time
        added = (remedy.time.seconds / before.seconds - 1) if before else 0.0
        return (
            remedy.name,
            str(remedy.cards),
            "yes" if remedy.fits else "NO",
            size_text(remedy.device_bytes),
            duration_text(remedy.time.seconds),
            UNSET if remedy is self.as_it_is else f"{added:+.0%}",
            remedy.how,
        )

    def _shown(self) -> Iterator[Table | Text]:
        yield self.table()
        yield Text(self.note, style="dim")


def try_remedies(
    trial: Trial,
    gpu: str,
    *,
    cards: int = 2,
    run: HollowRun | None = None,
    assume_zeros: bool = False,
) -> Remedies:
    """Runs the trial with each change on hollow GPUs.

    Args:
        trial: A trial with data; it stays as it is.
        gpu: The kind of GPU.
        cards: How many GPUs a change may use together.
        run: The run of the trial without any change, if there is one already.
        assume_zeros: Where the trial branches on a value from the GPU, take the branch for zero.

    Example:
        >>> try_remedies(trial, "t4").best.how  # doctest: +SKIP
        '.to("cuda", precision="fp16")'
    """
    if cards < 1:
        raise UsageError(f"expected at least one GPU as cards, got {cards}.")
    search = _Search(trial, card(gpu).kind, assume_zeros, run.context if run else None)
    as_it_is = Attempt("as it is", "", changes.as_it_is)
    run = run or search.run(as_it_is)
    before = _remedy(as_it_is, run)
    tried: list[Remedy] = []
    for ladder in _ladders(trial, gpu, cards, _activations(run)):
        tried += search.climbed(ladder)
    if not any(remedy.fits for remedy in tried if remedy.cards == 1):
        tried += search.climbed(_together(trial, gpu))
    tried.sort(key=lambda remedy: (not remedy.fits, remedy.card_seconds))
    return Remedies(search.gpu, before, tried)


@dataclass(frozen=True)
class _Search:
    """Hollow runs of one trial on one kind of GPU."""

    trial: Trial
    gpu: str
    assume_zeros: bool
    context: Context | None

    def climbed(self, ladder: Iterable[Attempt]) -> Iterator[Remedy]:
        """Ever stronger forms of one change, up to the first that fits."""
        for attempt in ladder:
            remedy = self.tried(attempt)
            yield remedy
            if remedy.fits:
                return

    def tried(self, attempt: Attempt) -> Remedy:
        """The effect of one form, or why it could not be run."""
        try:
            return _remedy(attempt, self.run(attempt))
        except UsageError as error:
            return Remedy(*attempt.label, None, False, None, str(error))

    def run(self, attempt: Attempt) -> HollowRun:
        """The trial with this change."""
        gpus = HollowGPUs(self.gpu, attempt.cards, STEPS, self.assume_zeros, self.context)
        return gpus.run(partial(attempt.change, self.trial), attempt.name)


def _remedy(attempt: Attempt, run: HollowRun) -> Remedy:
    return Remedy(*attempt.label, run.device_bytes, run.fits, run.predicted())


def _activations(run: HollowRun) -> dict[str, int]:
    """The bytes that each module keeps for the backward pass."""
    held = Counter[str]()
    for block in peak(run.blocks, run.device).blocks:
        if block.category == ACTIVATIONS:
            held[block.module] += block.bytes
    return held


def _ladders(
    trial: Trial, gpu: str, cards: int, activations: dict[str, int]
) -> Iterator[Iterable[Attempt]]:
    if trial.precision.name not in HALVES:
        half = _half(gpu)
        change = partial(changes.in_precision, precision=half)
        yield [Attempt(half, f'.to("cuda", precision="{half}")', change)]
    yield (_with_option(option, value) for option, value in (("fused", True), ("foreach", False)))
    yield (_in_parts(parts) for parts in PARTS)
    yield _checkpointing(trial)
    if cards > 1:
        how = f"fully_shard, torchrun --nproc-per-node {cards}"
        shard = partial(changes.sharded, cards=cards)
        yield [Attempt(f"FSDP2 over {cards} GPUs", how, shard, cards)]
        place = partial(changes.placed, cards=cards, activations=activations)
        yield [Attempt(f"layers over {cards} GPUs", "ad.place(network, …)", place, cards)]


def _with_option(option: str, value: bool) -> Attempt:
    how = f"{option}={value}, passed to the optimizer"
    change = partial(changes.with_optimizer, options={option: value})
    return Attempt(f"optimizer, {option}={value}", how, change)


def _in_parts(parts: int) -> Attempt:
    how = f"batch_size divided by {parts}, .with_options(accumulate={parts})"
    change = partial(changes.in_parts, parts=parts)
    return Attempt(f"gradient accumulation, {parts} parts", how, change)


def _checkpointing(trial: Trial) -> Iterator[Attempt]:
    name, blocks = changes.blocks_of(trial.network)
    if not blocks:
        change = partial(changes.checkpointed, every=1)
        yield Attempt("checkpointing, in segments", "torch.utils.checkpoint_sequential", change)
        return
    where = f"{len(blocks)} blocks in {name or 'the network'}"
    for every, which in ((2, f"every second of the {where}"), (1, f"the {where}")):
        change = partial(changes.checkpointed, every=every)
        yield Attempt(f"checkpointing, {which}", "torch.utils.checkpoint", change)


def _together(trial: Trial, gpu: str) -> Iterator[Attempt]:
    """Several changes at once, if no single one is enough."""
    half = trial.precision.name if trial.precision.name in HALVES else _half(gpu)
    for parts in (1, *PARTS):
        change = partial(changes.checkpointed, every=1, precision=half, parts=parts)
        also = f" and {parts} parts" if parts > 1 else ""
        yield Attempt(f"{half}, checkpointing{also}", "all of these together", change)


def _half(gpu: str) -> str:
    return "bf16" if card(gpu).capability >= (8, 0) else "fp16"
