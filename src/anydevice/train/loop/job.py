"""The making of a trial's job: what the loop works on, from what the trial was given."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import is_lazy

from anydevice.errors import UsageError
from anydevice.train.data.portions import Portion
from anydevice.train.distributed.ddp import FittingTogether, Replicated
from anydevice.train.distributed.strategy import Strategy
from anydevice.train.faces.lightning import Steps
from anydevice.train.loop.fitting import Fitting
from anydevice.train.loop.forward import Forward, Step, forward_of
from anydevice.train.loop.loop import Gradients, Job, as_it_was, gradients
from anydevice.train.loop.softening import softened
from anydevice.train.options import Options
from anydevice.train.ranks import Ranks
from anydevice.train.recipes import Loss, OptimizerLike

if TYPE_CHECKING:
    from anydevice.train.trial import Trial


@dataclass(frozen=True)
class Recipe:
    """How a network is to be trained: objects, functions or names, as `Trial` was given them."""

    optimizer: OptimizerLike | None
    loss: str | Loss | None
    metrics: Sequence[Any]
    step: Step | None

    @property
    def names(self) -> dict[str, Any]:
        """The parts that were given by name, which a saved trial keeps."""
        given = {"optimizer": self.optimizer, "loss": self.loss}
        names: dict[str, Any] = {what: it for what, it in given.items() if isinstance(it, str)}
        return {**names, "metrics": [name for name in self.metrics if isinstance(name, str)]}

    @property
    def has_own_steps(self) -> bool:
        """Whether the module brings its own `training_step`, as in Lightning."""
        return isinstance(self.step, Steps)


def job_of(trial: "Trial") -> Job:
    """The job of a trial that trains in one process; its optimizer is built when it is needed."""
    options, network = trial.options, trial.network
    if options.seed is not None:
        torch.manual_seed(options.seed)
    initialise_lazy(trial)
    if options.compile and trial.recipe.has_own_steps:
        raise UsageError(
            "expected a module that compiles its own parts, since its training_step is "
            "called as it is, got compile=True: call module.compile() on a part."
        )
    if options.channels_last:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Job(
        network=torch.compile(network) if options.compile else network,
        forward=forward_for(trial),
        metrics=trial.metrics,
        autocast=trial.precision.autocast,
        scaler=trial.precision.scaler(),
        accumulate=options.accumulate,
        clip_norm=options.clip_norm,
        clip_value=options.clip_value,
        sums=getattr(trial.loss, "reduction", "mean") == "sum",
        gradients=gradients_of(options, trial.device),
    )


def forward_for(trial: "Trial") -> Forward:
    """What is done with a batch: the network, and the loss with softer targets if it is to be."""
    options = trial.options
    if not (options.label_smoothing or options.mixup):
        return forward_of(trial.loss, trial.recipe.step)
    if trial.recipe.step is not None:
        raise UsageError(
            "expected a trial with its own loss for label_smoothing or mixup, got one with step=: "
            "do it in the step."
        )
    return softened(trial.loss, options.label_smoothing, options.mixup)


def gradients_of(
    options: Options, device: torch.device, strategy: Strategy | None = None
) -> Gradients:
    """How a step gets its gradients; on a GPU, a batch that does not fit is split."""
    splits = options.on_oom == "split" and device.type not in ("cpu", "meta")
    if strategy is None:
        return Fitting(device).gradients if splits else gradients
    if splits and isinstance(strategy, Replicated):
        return FittingTogether(strategy, device).gradients
    return strategy.gradients


def share_out(trial: "Trial", optimizer: object, ranks: Ranks) -> Strategy:
    """Turns the job of one process into one rank's part of the work."""
    seed = trial.sets.share(ranks)
    torch.manual_seed(seed + 1 + ranks.rank)  # dropout differs from rank to rank
    job, forward = trial.job, forward_for(trial)
    strategy: Strategy
    if trial.options.strategy == "fsdp":
        from anydevice.train.distributed.fsdp import Sharded, shard  # takes a second to import

        shard(trial.network, trial.loss, optimizer, ranks)
        strategy = Sharded(ranks, job.network, trial.loss, forward, job.sums)
    else:
        strategy = Replicated(ranks, job.network, trial.loss, forward, job.sums)
    job.network, job.forward = strategy.wrapped, strategy.forward
    job.gradients = gradients_of(trial.options, trial.device, strategy)
    return strategy


def initialise_lazy(trial: "Trial") -> None:
    """Lazy modules take their sizes from a first batch, without training on it."""
    held = (*trial.network.parameters(), *trial.network.buffers())
    if not any(map(is_lazy, held)):
        return
    with as_it_was(trial.network), torch.no_grad():
        forward_of(trial.loss, trial.recipe.step)(trial.network.eval(), first_batch(trial))


def first_batch(trial: "Trial") -> Any:
    """The first batch of the training data."""
    batch = next(iter(trial.sets.named("train")))
    return batch.batch if isinstance(batch, Portion) else batch
