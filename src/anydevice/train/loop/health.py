"""How a training is doing, apart from its metrics: rates, gradients, speed, a diverging loss."""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from anydevice.notices import log

if TYPE_CHECKING:
    from anydevice.train.loop.loop import Job
    from anydevice.train.trial import Trial

GREW = 100  # times its lowest epoch's: then a loss has diverged
NOTED = 64  # losses of an epoch that are kept, to say where it began


def rates_of(optimizer: Optimizer | None) -> dict[str, float]:
    """The learning rate, or that of each group: by the group's name if it has one."""
    groups = optimizer.param_groups if optimizer else []
    if len(groups) == 1:
        return {"learning_rate": float(groups[0]["lr"])} if "lr" in groups[0] else {}
    return {
        f"learning_rate/{group.get('name', place)}": float(group["lr"])
        for place, group in enumerate(groups)
        if "lr" in group
    }


def gradient_norm(job: "Job") -> Tensor | None:
    """The norm of the last step's gradients, before they were clipped, still on the device."""
    norm: Any = job.norm
    if norm is None and not job.scaler:  # which may leave them scaled
        groups = job.optimizer.param_groups if job.optimizer else []
        held = [p.grad for g in groups for p in g["params"] if p.grad is not None]
        gradients = [g.coalesce().values() if g.is_sparse else g for g in held]
        norm = nn.utils.get_total_norm(gradients) if gradients else None
    if hasattr(norm, "full_tensor"):  # of a sharded network
        norm = norm.full_tensor()
    return None if norm is None else norm.detach()


def speed_of(trial: "Trial", seconds: float) -> dict[str, float | int]:
    """The samples a second of all ranks together, and the peak of the GPU's memory."""
    job, world = trial.job, trial.ranks.world if trial.ranks else 1
    samples, job.samples = job.samples * world, 0
    speed: dict[str, float | int] = {"samples_per_second": samples / max(seconds, 1e-9)}
    if trial.device.type == "cuda":
        speed["peak_bytes"] = torch.cuda.max_memory_allocated(trial.device)
    return speed


class Noted:
    """Some of an epoch's losses, evenly spread and still on the device."""

    def __init__(self) -> None:
        self.every = 1
        self.losses: list[tuple[int, Tensor]] = []

    def note(self, step: int, loss: Tensor) -> None:
        """Keep this step's loss; of very many, every second, then every fourth …"""
        self.losses.append((step, loss.detach()))
        if len(self.losses) == NOTED:
            self.every *= 2
            self.losses = [(step, loss) for step, loss in self.losses if step % self.every == 0]

    def first(self) -> float | None:
        """The first loss that is still noted."""
        return float(self.losses[0][1]) if self.losses else None

    def first_not_finite(self) -> int | None:
        """The first step noted whose loss was not a finite number."""
        return next((step for step, loss in self.losses if not math.isfinite(float(loss))), None)


def announce_divergence(trial: "Trial", record: dict[str, Any]) -> None:
    """One line, once a run, for a loss that is not finite any more, or that has exploded."""
    noted, trial.job.noted = trial.job.noted, Noted()
    loss, lowest = record.get("loss"), _lowest(trial)
    if trial.job.diverged or not isinstance(loss, float) or not _is_sound(lowest):
        return
    if lowest is None and GREW < loss < math.inf:  # has it grown within the first epoch?
        lowest = noted.first()
    if math.isfinite(loss) and not (lowest and loss > GREW * lowest):
        return
    trial.job.diverged = True
    if trial.ranks is None or trial.ranks.first:
        log.warning("%s", _divergence(trial, loss, lowest, noted))


def _lowest(trial: "Trial") -> float | None:
    """The lowest loss of the epochs before; not finite once a loss was announced."""
    losses = [r["loss"] for r in trial.history if isinstance(r.get("loss"), float)]
    if not all(map(math.isfinite, losses)):
        return math.nan
    lowest = min(losses, default=None)
    grown = lowest is not None and any(
        late > GREW * min(losses[:place]) > 0 for place, late in enumerate(losses) if place
    )
    return math.nan if grown else lowest


def _is_sound(lowest: float | None) -> bool:
    return lowest is None or math.isfinite(lowest)


def _divergence(trial: "Trial", loss: float, lowest: float | None, noted: Noted) -> str:
    rates = ", ".join(f"{rate:g}" for rate in rates_of(trial.job.optimizer).values())
    place = f"in epoch {trial.epoch + 1}"
    step = None if math.isfinite(loss) else noted.first_not_finite()
    if step is not None:
        about = "at" if noted.every == 1 else f"at or up to {noted.every - 1} steps before"
        place += f", {about} step {step}"
    became = f"became {loss}" if lowest is None else f"went from {lowest:.4g} to {loss:.4g}"
    rate = f" with learning rate {rates}" if rates else ""
    return (
        f"The loss {became} {place}{rate}. Fix: a lower learning rate, "
        "with_options(clip_norm=1.0), or a look at that batch: NanGuard() stops there."
    )
