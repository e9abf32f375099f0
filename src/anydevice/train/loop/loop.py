"""The training loop: what is done for each batch, in plain sight and without waiting.

Nothing between two log points reads a value from the device.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from anydevice.train.data.rows import sample_count
from anydevice.train.loop.forward import Forward, Result
from anydevice.train.loop.health import Noted
from anydevice.train.metrics.metrics import Metrics

Hook = Callable[[], None]
Gradients = Callable[["Job", list[Any]], list[Result]]


@dataclass
class Job:
    """Everything that a step touches, made once before the first one."""

    network: Any  # the network, or what was compiled of it
    forward: Forward
    metrics: Metrics
    autocast: AbstractContextManager[object]
    gradients: Gradients  # the function below, or one around it
    optimizer: Optimizer | None = None  # none is needed to measure
    scaler: torch.amp.GradScaler | None = None
    accumulate: int = 1
    sums: bool = False  # whether the loss is a sum over samples instead of a mean
    clip_norm: float | None = None
    clip_value: float | None = None
    after_step: list[Hook] = field(default_factory=list)
    step: int = 0
    skipped: Any = 0  # steps of this epoch whose scaled gradients were not finite
    batch: Any = None  # the last one, and what came of the step it was in
    results: list[Result] = field(default_factory=list)
    batches: int = 0  # of the epoch that is under way
    parts: int = 1  # that each batch is taken in, since it did not fit
    samples: int = 0  # of the epoch that is under way
    noted: Noted = field(default_factory=Noted)
    diverged: bool = False  # and it was announced
    norm: Tensor | None = None  # of the last step's gradients, before they were clipped


def train_epoch(job: Job, batches: Iterable[Any]) -> None:
    """One pass over the data; each group of `accumulate` batches makes one step."""
    assert job.optimizer
    job.network.train()
    for group in groups(batches, job.accumulate):
        forget_gradients(job.optimizer)
        job.batch = group[-1]
        job.results = job.gradients(job, group)
        job.norm = None
        update(job, job.optimizer)
        job.metrics.update(job.results)
        job.step += 1
        job.batches += len(group)
        job.samples += sum(result.size for result in job.results)
        if job.results and job.step % job.noted.every == 0:
            job.noted.note(job.step, job.results[-1].loss)
        for react in job.after_step:
            react()
        job.batch = None
        job.results.clear()  # outputs may be large: gone before the next forward pass


def forget_gradients(optimizer: Optimizer) -> None:
    """As `zero_grad()`, in a tenth of its time, unless the optimizer has its own."""
    if getattr(type(optimizer), "zero_grad", None) is not Optimizer.zero_grad:
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def gradients(job: Job, group: list[Any]) -> list[Result]:
    """Adds to the parameters the gradient of the mean loss over all samples of the group."""
    results = []
    several = len(group) > 1 and not job.sums  # sums of parts add up to the whole as they are
    samples = sum(sample_count(batch) for batch in group) if several else 0
    for batch in group:
        with job.autocast:
            result = job.forward(job.network, batch)
        backward(job, result.loss, result.size / samples if samples else 1)
        results.append(result)
    return results


def backward(job: Job, loss: Tensor, weight: float) -> None:
    """Adds the gradient of a part's loss, weighted by its share in the whole."""
    if weight != 1:
        loss = loss * weight
    (job.scaler.scale(loss) if job.scaler else loss).backward()  # type: ignore[no-untyped-call]


def update(job: Job, optimizer: Optimizer) -> None:
    """One step of the optimizer, with gradients unscaled before they are clipped."""
    if job.clip_norm is not None or job.clip_value is not None:
        if job.scaler:
            job.scaler.unscale_(optimizer)
        trained = [p for group in optimizer.param_groups for p in group["params"]]
        if job.clip_norm is not None:
            job.norm = nn.utils.clip_grad_norm_(trained, job.clip_norm)
        if job.clip_value is not None:
            nn.utils.clip_grad_value_(trained, job.clip_value)
    if job.scaler:
        job.scaler.step(optimizer)
        for infinite in job.scaler._found_inf_per_device(optimizer).values():
            job.skipped = job.skipped + infinite  # stays on the device
        job.scaler.update()
    else:
        optimizer.step()


@torch.no_grad()
def evaluate(job: Job, batches: Iterable[Any]) -> int:
    """Measures without learning, and says on how many batches."""
    job.network.eval()
    number = 0
    for batch in batches:
        with job.autocast:
            job.metrics.update([job.forward(job.network, batch)])
        number += 1
    return number


@contextmanager
def as_it_was(network: nn.Module) -> Iterator[None]:
    """Leaves each module training, or not, as the block found it."""
    modes = [(module, module.training) for module in network.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def groups(batches: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """So many batches at a time; the last group may be smaller."""
    if size == 1:
        yield from ([batch] for batch in batches)
        return
    rest = iter(batches)
    while group := list(islice(rest, size)):
        yield group
