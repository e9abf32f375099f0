"""One epoch of a trial: train, measure, and give the record that its history gets."""

from collections.abc import Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from torch import Tensor

from anydevice.errors import UsageError
from anydevice.train.callbacks.averaging import averaged
from anydevice.train.callbacks.callback import checked, everywhere, listeners, reactions
from anydevice.train.callbacks.progress import Progress
from anydevice.train.loop.health import announce_divergence, gradient_norm, rates_of, speed_of
from anydevice.train.loop.loop import Hook, Job, as_it_was, evaluate, train_epoch

if TYPE_CHECKING:
    from anydevice.train.trial import Trial


def reactions_of(trial: "Trial", verbose: bool) -> dict[str, Hook]:
    """What happens at each moment; callbacks that show or write do so on the first rank alone."""
    job, ranks = trial.job, trial.ranks
    keeper = [trial.keeper] if trial.keeper else []
    callbacks = [
        *checked(trial.callbacks),
        *everywhere,
        *([Progress()] if verbose else []),
        *keeper,
    ]
    if ranks and not ranks.first:
        callbacks = [c for c in callbacks if getattr(c, "on_every_rank", True)]
    react = reactions(callbacks, trial)
    job.after_step = [react["on_step"]] if listeners(callbacks, "on_step") else []
    if ranks:
        job.after_step.insert(0, lambda: _uncover(job))
    return react


def epoch_of(trial: "Trial") -> dict[str, Any]:
    """Trains for an epoch, or for what is left of one, and gives its record."""
    begin, job = perf_counter(), trial.job
    trial.sets.epoch = trial.epoch
    if not job.batches:
        trial.metrics.reset(trial.device)
    batches = trial.sets.named("train")
    train_epoch(job, trial.keeper.rest(batches, trial) if trial.keeper else batches)
    if not job.batches:
        raise UsageError(
            f"expected batches to train on in epoch {trial.epoch + 1}, got none: is the data "
            "empty, or a generator that is spent after one pass?"
        )
    job.batches = 0  # the epoch's training is over: its metrics need not be kept
    norm = gradient_norm(job)
    figures = _figures(trial, **({} if norm is None else {"grad_norm": norm}))
    trained = perf_counter() - begin  # the device has caught up
    last = figures.pop("grad_norm", None)
    after: dict[str, Any] = {**rates_of(job.optimizer), "grad_norm": last}
    record = {"epoch": trial.epoch + 1, **figures}
    announce_divergence(trial, record)
    if job.scaler:
        record["skipped"], job.skipped = int(job.skipped), 0
    if "val" in trial.sets.given:
        figures = measured(trial, trial.sets.named("val"))
        record |= {f"val_{name}": figure for name, figure in figures.items()}
    record |= {**after, **speed_of(trial, trained), "seconds": perf_counter() - begin}
    return trial.ranks.told(record) if trial.ranks else record


def measured(trial: "Trial", batches: Iterable[Any]) -> dict[str, float]:
    """The metrics over these batches; those of an epoch under way are not disturbed."""
    job = trial.job
    training = trial.metrics.state() if job.batches else None
    trial.metrics.reset(trial.device)
    if trial.ranks:
        trial.ranks.same_buffers(trial.network)
    with as_it_was(trial.network), averaged(trial):
        number = evaluate(job, batches)
    if not number:
        raise UsageError("expected batches to measure with, got none: is the data empty?")
    figures = _figures(trial)
    if training:
        trial.metrics.set_state(training, trial.device)
    return figures


def _figures(trial: "Trial", **others: Tensor) -> dict[str, float]:
    if trial.ranks:
        return trial.metrics.read_over(trial.ranks, trial.device, **others)
    return trial.metrics.read(**others)


def _uncover(job: Job) -> None:
    """Callbacks see the batch itself, not that it is a rank's part of one."""
    job.batch = job.batch.batch
