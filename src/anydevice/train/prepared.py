"""What a trial is given, and what is made of it before the first step."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from anydevice.devices.choose import DeviceLike, exact, pick
from anydevice.devices.move import move
from anydevice.errors import UsageError
from anydevice.train.checkpoint.checkpoints import Checkpoints
from anydevice.train.checkpoint.resume import Keeper
from anydevice.train.data.portions import Portion
from anydevice.train.data.sets import Sets
from anydevice.train.distributed.ddp import FittingTogether, Replicated, Together
from anydevice.train.distributed.failing import Watch
from anydevice.train.fitting import Fitting
from anydevice.train.forward import Step, forward_of
from anydevice.train.history import History
from anydevice.train.lightning import Steps, recipe_of
from anydevice.train.loop import Job, as_it_was, gradients
from anydevice.train.metrics import Metrics
from anydevice.train.options import AT_ANY_TIME, Options, determinism
from anydevice.train.precision import precision_of
from anydevice.train.ranks import Ranks, own_device, together
from anydevice.train.recipes import Loss, OptimizerLike, loss_of, optimizer_of

if TYPE_CHECKING:
    from anydevice.train.checkpoint.shards import Shards

SETS = ("train", "val", "test")


class Prepared:
    """A network, an optimizer, a loss, data and options; the job that the loop works on."""

    def __init__(
        self,
        network: nn.Module,
        optimizer: OptimizerLike | None = "adam",
        criterion: str | Loss | None = None,
        metrics: Sequence[Any] = ("loss",),
        callbacks: Sequence[Any] = (),
        *,
        loss: str | Loss | None = None,
        step: Step | None = None,
    ) -> None:
        self.network = network
        self.loss = loss_of(criterion if loss is None else loss)
        self.metrics = Metrics(metrics)
        self.callbacks = list(callbacks)
        self.history = History()
        self.options = Options()
        self.precision = precision_of("fp32", _home(network))
        self.stopped = False
        self._wanted_optimizer = optimizer
        given = {"optimizer": optimizer, "loss": criterion if loss is None else loss}
        self._names: dict[str, Any] = {k: v for k, v in given.items() if isinstance(v, str)}
        self._names["metrics"] = [name for name in metrics if isinstance(name, str)]
        self._step = step
        self._job: Job | None = None
        self._keeper: Keeper | None = None
        self._fitting = Fitting(_home(network))
        self._way: Together | None = None
        self.ranks: Ranks | None = None  # those that train together, once they have met
        self.sets = Sets(_home(network))

    @classmethod
    def of(cls, module: nn.Module, **options: Any) -> Self:
        """A module that has `training_step` and `configure_optimizers`, as it is."""
        recipe = recipe_of(module)
        callbacks = [*recipe.pop("callbacks"), *options.pop("callbacks", ())]
        return cls(module, callbacks=callbacks, **{**recipe, **options})

    def to(self, device: DeviceLike = "auto", precision: str | None = None) -> Self:
        """Trains there, in this precision: "fp32", "tf32", "bf16", "fp16" or "auto"."""
        place = own_device(exact(pick(device)))
        if self.is_sharded:
            raise UsageError(
                "expected .to() before the network is shared out over the ranks, got it after."
            )
        self.precision = precision_of(precision or self.precision.name, place)
        self.network = move(self.network, place)
        for beside in (self.loss, self._wanted_optimizer):
            if isinstance(beside, (nn.Module, torch.optim.Optimizer)):
                move(beside, place)
        if self._job:
            self._job.autocast, self._job.scaler = self.precision.autocast, self.precision.scaler()
            if self._way:  # it is made again for the other device
                self._job.network, self._way = self._way.network, None
            self._job.gradients = self._gradients()
        self.sets.to(place)
        return self

    def with_options(self, **options: Any) -> Self:
        """Sets accumulate, clip_norm, compile, channels_last, deterministic, seed, on_oom, ….

        `strategy` is how the ranks that torchrun starts train together: "ddp" or "fsdp"; "alone"
        has each train for itself.
        """
        known = Options.__dataclass_fields__
        if strangers := options.keys() - known:
            raise UsageError(
                f"expected options among {', '.join(known)}, got {', '.join(sorted(strangers))}."
            )
        job = self._job if self._job and self._job.step else None
        if job and (early := options.keys() - AT_ANY_TIME):
            raise UsageError(
                f"expected {', '.join(sorted(early))} before the first step, got it after "
                f"{job.step}: make another trial with it."
            )
        self.options = replace(self.options, **options)
        if job:
            job.accumulate, job.clip_norm = self.options.accumulate, self.options.clip_norm
            job.gradients = self._gradients()
        else:
            self._job = None
        return self

    def with_generators(
        self,
        train_generator: Any = None,
        val_generator: Any = None,
        test_generator: Any = None,
        *,
        batch_size: int = 100,
        shuffle: bool = True,
    ) -> Self:
        """The data: tensors, a Dataset, a DataLoader or any iterable of batches.

        `batch_size` and `shuffle` are for data that comes without batches.
        """
        given = (train_generator, val_generator, test_generator)
        for name, data in zip(SETS, given, strict=True):
            if data is not None:
                self.sets.give(name, data, batch_size, shuffle and name == "train")
        return self

    def checkpoint(self, folder: str | Path, *, every: int | None = None, keep: int = 2) -> Self:
        """Keeps checkpoints there: at each epoch's end and every so many steps, the newest `keep`.

        A run that was interrupted, in whatever way, goes on from the newest as if it had not been.
        """
        self._keeper = Keeper(Checkpoints(Path(folder), every, keep))
        return self

    @property
    def epoch(self) -> int:
        """How many epochs are done."""
        return len(self.history)

    @property
    def device(self) -> torch.device:
        """Where it trains."""
        return self.precision.device

    @property
    def is_sharded(self) -> bool:
        """Whether this process has a share of the network instead of the whole."""
        return self._way is not None and self._way.is_sharded

    @property
    def train_data(self) -> Any:
        """The training data as it was given."""
        given = self.sets.given.get("train")
        return given.data if given else None

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer, built if it is not yet."""
        return self._with_optimizer(self.job)

    @property
    def job(self) -> Job:
        """What the loop touches, made at the first use."""
        if self._job is None:
            if self.options.seed is not None:
                torch.manual_seed(self.options.seed)
            self._initialise_lazy()
            network: Any = self.network
            if self.options.compile and isinstance(self._step, Steps):
                raise UsageError(
                    "expected a module that compiles its own parts, since its training_step is "
                    "called as it is, got compile=True: call module.compile() on a part."
                )
            if self.options.channels_last:
                network.to(memory_format=torch.channels_last)
            self._job = Job(
                network=torch.compile(network) if self.options.compile else network,
                forward=forward_of(self.loss, self._step),
                metrics=self.metrics,
                autocast=self.precision.autocast,
                scaler=self.precision.scaler(),
                accumulate=self.options.accumulate,
                clip_norm=self.options.clip_norm,
                sums=getattr(self.loss, "reduction", "mean") == "sum",
                gradients=self._gradients(),
            )
        return self._job

    def _with_optimizer(self, job: Job) -> torch.optim.Optimizer:
        """The job's optimizer, built once the network's parameters are what they will be."""
        if job.optimizer is None:
            job.optimizer = optimizer_of(self._wanted_optimizer, self.network, self.loss)
            self._wanted_optimizer = job.optimizer
        return job.optimizer

    def _gradients(self) -> Any:
        """How a step gets its gradients: on a GPU, also where they do not fit at once."""
        survives = self.options.on_oom == "split" and self.device.type not in ("cpu", "meta")
        parts = self._fitting.parts
        if isinstance(self._way, Replicated) and self.ranks:
            self._fitting = FittingTogether(self.ranks, self._way, self.device, parts)
        else:
            self._fitting = Fitting(self.device, parts)
        if survives and not self.is_sharded:
            return self._fitting.gradients
        return self._way.gradients if self._way else gradients

    @contextmanager
    def _together(self) -> Iterator[Watch | None]:
        """Inside the block the ranks work on this trial together, if there are several."""
        if self.options.strategy == "alone" or not together():
            yield None
            return
        self.ranks = Ranks.here(self.device)
        with Watch(self.ranks) as watch:
            self._take_part(self.job, self.ranks)
            yield watch

    def _take_part(self, job: Job, ranks: Ranks) -> None:
        """The job as one rank's part of the work, made of the job of one process."""
        if self._way is None:
            seed = self.sets.share(ranks)
            torch.manual_seed(seed + 1 + ranks.rank)  # dropout differs from rank to rank
            forward = forward_of(self.loss, self._step)
            if self.options.strategy == "fsdp":
                from anydevice.train.distributed.fsdp import (  # takes a second to import
                    Sharded,
                    shard,
                )

                shard(self.network, self.loss, self._wanted_optimizer, ranks)
                self._way = Sharded(ranks, job.network, self.loss, forward, job.sums)
            else:
                self._way = Replicated(ranks, job.network, self.loss, forward, job.sums)
            job.network, job.forward = self._way.wrapped, self._way.forward
            job.gradients = self._gradients()

    def whole_state(self) -> dict[str, Tensor]:
        """The network's state_dict on the CPU; of one in shares, gathered by all ranks together."""
        state = self.network.state_dict()
        wholes = {n: t.full_tensor() if hasattr(t, "full_tensor") else t for n, t in state.items()}
        return {n: t.detach().to("cpu", copy=True).contiguous() for n, t in wholes.items()}

    def set_whole_state(self, state: dict[str, Tensor]) -> None:
        """Takes up what `whole_state()` gave."""
        if not self.is_sharded:
            self.network.load_state_dict(state)
            return
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        whole = StateDictOptions(full_state_dict=True)
        set_model_state_dict(self.network, {**state}, options=whole)

    def _shards(self) -> "Shards":
        from anydevice.train.checkpoint.shards import Shards  # takes a second to import

        ranks = self.ranks if self.is_sharded else None
        return Shards(self.network, self.loss, self.job.optimizer, ranks)

    def _with_state(self) -> list[Any]:
        return [callback for callback in self.callbacks if hasattr(callback, "state_dict")]

    def _settings(self) -> ExitStack:
        stack = ExitStack()
        stack.enter_context(self.precision.matmuls())
        stack.enter_context(determinism(self.options.deterministic))
        return stack

    def _initialise_lazy(self) -> None:
        """Lazy modules learn their sizes from a first batch, without training on it."""
        held = (*self.network.parameters(), *self.network.buffers())
        if not any(map(is_lazy, held)):
            return
        with as_it_was(self.network), torch.no_grad():
            forward_of(self.loss, self._step)(self.network.eval(), self._first_batch())

    def _first_batch(self) -> Any:
        batch = next(iter(self.sets.named("train")))
        return batch.batch if isinstance(batch, Portion) else batch


def _home(network: nn.Module) -> torch.device:
    """Where the network is already."""
    first = next(network.parameters(), None)
    return torch.device("cpu") if first is None else first.device
