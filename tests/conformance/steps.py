"""Training cases of a recording, run hollow: how far memory and time are from the real card's."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Names = dict[str, Any]
NEAR = 0.05  # how far the peak of allocated memory may be off for a case to agree


def trained(names: Names, code: str, gpu: str) -> dict[str, Any]:
    """As record.py's `steps` runs it: built, three steps, each with its peaks; and its time."""
    import torch

    from anydevice.devices.catalogue import card
    from anydevice.plan.hollow.watch import StepWatch
    from anydevice.plan.time.predict import predict

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    base, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    watch = StepWatch(card(gpu), steps=1 << 30)
    try:
        with watch.watching():
            step = eval(code, names)
            per_step = []
            for _ in range(3):
                torch.cuda.reset_peak_memory_stats()
                step()
                peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
                per_step.append([*peaks, torch.cuda.memory_allocated()])
    except torch.OutOfMemoryError as error:
        return {"oom": str(error)[:300]}
    assert watch.work
    return {
        "base": base,
        "steps_peak_allocated_reserved_and_left": per_step,
        "device_bytes": torch.cuda.memory_reserved() - reserved,
        "step_s": predict(watch.work, card(gpu), synchronised=True, measured={}).seconds,
    }


@dataclass(frozen=True)
class Difference:
    """One figure of one case: the card's, and the one from here."""

    case: str
    figure: str
    card: float
    here: float

    @property
    def relative(self) -> float:
        """How far off, as a share of the card's."""
        return abs(self.here - self.card) / self.card


def differences(case: str, card: dict[str, Any], here: dict[str, Any]) -> list[Difference]:
    """Each figure that both have; none where either ran out of memory."""
    if "step_s" not in card or "step_s" not in here:
        return []
    pairs = {
        "allocated": (_peak(card, 0) - card["base"], _peak(here, 0) - here["base"]),
        "reserved": (_peak(card, 1), _peak(here, 1)),
        "device": (card["device_bytes"], here["device_bytes"]),
        "time": (card["step_s"], here["step_s"]),
    }
    return [Difference(case, figure, *pair) for figure, pair in pairs.items()]


def agrees(card: dict[str, Any], here: dict[str, Any]) -> bool:
    """The same verdict, and nearly the same peak."""
    if "oom" in card or "oom" in here:
        return ("oom" in card) == ("oom" in here)
    return any(d.figure == "allocated" and d.relative <= NEAR for d in differences("", card, here))


def summary(found: Iterable[Difference]) -> list[str]:
    """A line a figure: the median, 95th percentile and worst of the relative errors."""
    by_figure: dict[str, list[Difference]] = {}
    for difference in found:
        by_figure.setdefault(difference.figure, []).append(difference)
    return [_line(figure, each) for figure, each in by_figure.items()]


def _line(figure: str, each: list[Difference]) -> str:
    errors = sorted(d.relative for d in each)
    worst = max(each, key=lambda d: d.relative)
    high = errors[max(0, -(-95 * len(errors) // 100) - 1)]
    return (
        f"  {figure}: median {statistics.median(errors):.1%}, 95th percentile {high:.1%}, "
        f"worst {worst.relative:.1%} ({worst.case}: card {worst.card:g}, here {worst.here:g})"
    )


def _peak(result: dict[str, Any], column: int) -> int:
    return max(row[column] for row in result["steps_peak_allocated_reserved_and_left"])
