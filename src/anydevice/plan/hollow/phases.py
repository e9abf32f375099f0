"""The parts of a step: the turn of each optimizer, a prompt and each new token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from anydevice.plan.hollow.blocks import Block
from anydevice.plan.hollow.steps import FORWARD, STEP, Mark, Steps
from anydevice.plan.time.predict import Prediction
from anydevice.plan.time.recorder import WorkRecorder
from anydevice.plan.time.work import Work
from anydevice.text import size_text

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Phase:
    """A part of a step.

    Attributes:
        name: What it is.
        count: How often it comes in a step.
        bytes: The peak of tensors and workspaces in it, on the GPU that is fullest.
        work: What it does in all, if that was recorded.
    """

    name: str
    count: int
    bytes: int
    work: Work | None = field(default=None, repr=False)


def turns(
    steps: Steps, names: dict[int, str], recorder: WorkRecorder | None, blocks: list[Block]
) -> list[Phase]:
    """The turns of several optimizers in the last round; none if there is one optimizer."""
    marks = steps.of_last(STEP) if steps.unit == STEP else []
    if len({mark.who for mark in marks}) < 2:
        return []
    spans = list(zip((steps.begin, *marks), marks, strict=False))
    found: list[Phase] = []
    for who in dict.fromkeys(mark.who for mark in marks):
        own = [(begin, end) for begin, end in spans if end.who == who]
        name = names[who]
        if any(phase.name == name for phase in found):
            name += f" ({len(found) + 1})"
        most = max(peak_between(blocks, *span) for span in own)
        found.append(Phase(name, len(own), most, _work(recorder, own)))
    return found


def passes(
    steps: Steps, shapes: Sequence[Shape], recorder: WorkRecorder | None, blocks: list[Block]
) -> list[Phase]:
    """The first pass and one later, if their inputs differ in shape: a prompt and a new token."""
    ends = steps.ends
    if steps.unit != FORWARD or len(ends) < 2 or shapes[0] == shapes[len(ends) - 1]:
        return []
    assert steps.first_pass
    first, last = (steps.first_pass, ends[0]), (ends[-2], ends[-1])
    return [
        _pass("first pass", shapes[0], 1, first, recorder, blocks),
        _pass("last pass", shapes[len(ends) - 1], len(ends) - 1, last, recorder, blocks),
    ]


def growth(steps: Steps) -> list[str]:
    """A sentence about what each pass of an inference leaves behind: a cache of keys and values."""
    left = steps.left[2:]  # the first two follow a prompt, whose tensors are other ones
    half = len(left) // 2
    grows = half and min(left[half:]) >= max(left[:half]) and left[-1] > left[0]
    if steps.unit != FORWARD or not grows:
        return []
    each = size_text((left[-1] - left[0]) // (len(left) - 1))
    return [f"Each further pass leaves {each} more behind, such as a cache of keys and values."]


def combined(parts: list[tuple[Prediction, int]], samples: int | None) -> Prediction:
    """The time of parts that follow each other, each so many times."""

    def total(name: str) -> float:
        return sum(float(getattr(part, name)) * count for part, count in parts)

    def share(name: str) -> float:
        waits = sum(float(getattr(part, name)) * part.seconds * count for part, count in parts)
        return waits / seconds if seconds else 0.0

    seconds, by_op = total("seconds"), dict[str, float]()
    for part, count in parts:
        for name, spent in part.by_op.items():
            by_op[name] = by_op.get(name, 0.0) + spent * count
    return replace(
        parts[0][0],
        seconds=seconds,
        low=total("low"),
        high=total("high"),
        busy=total("busy"),
        samples=samples,
        by_op=by_op,
        waits_for_launches=share("waits_for_launches"),
        waits_for_transfers=share("waits_for_transfers"),
        waits_for_data=share("waits_for_data"),
    )


def _pass(
    name: str,
    shape: Shape,
    count: int,
    span: tuple[Mark, Mark],
    recorder: WorkRecorder | None,
    blocks: list[Block],
) -> Phase:
    of = f"{name}, of {' × '.join(map(str, shape))}" if shape else name
    return Phase(of, count, peak_between(blocks, *span), _work(recorder, [span]))


def _work(recorder: WorkRecorder | None, spans: list[tuple[Mark, Mark]]) -> Work | None:
    if recorder is None:
        return None
    parts = [recorder.between(begin.entry, end.entry) for begin, end in spans]
    return Work([entry for part in parts for entry in part])


def peak_between(blocks: list[Block], begin: Mark, end: Mark) -> int:
    """The most bytes that one GPU holds between two marks."""
    most = 0
    for device in {block.device for block in blocks}:
        counted = [block for block in blocks if block.device == device]
        changes = [(block.start, block.bytes) for block in counted]
        changes += [(block.end, -block.bytes) for block in counted if block.end is not None]
        now = 0
        for event, change in sorted(changes):
            if event >= end.event:
                break
            if event >= begin.event:
                most = max(most, now)
            now += change
        most = max(most, now)
    return most
