"""One training run: a network, an optimizer, a loss, and data, on any device."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from anydevice.devices.choose import DeviceLike, exact, pick
from anydevice.devices.move import move
from anydevice.errors import UsageError
from anydevice.train.adapt import Steps, recipe_of
from anydevice.train.callbacks import Progress
from anydevice.train.callbacks.moments import listeners, reactions
from anydevice.train.checkpoint import Checkpoints, read, take_up
from anydevice.train.export import export
from anydevice.train.fitting import Fitting
from anydevice.train.forward import Step, forward_of, without_target
from anydevice.train.history import History
from anydevice.train.loop import Job, as_it_was, evaluate, gradients, train_epoch
from anydevice.train.metrics import Metrics
from anydevice.train.options import Options, determinism
from anydevice.train.precision import precision_of
from anydevice.train.randomness import random_state
from anydevice.train.recipes import Loss, OptimizerLike, loss_of, optimizer_of
from anydevice.train.resume import Keeper
from anydevice.train.sets import Sets

SETS = ("train", "val", "test")


class Trial:
    """A training run.

    >>> trial = Trial(network, "adam", "cross_entropy", metrics=["loss", "accuracy"]).to("auto")
    >>> history = trial.with_generators(train, val).run(epochs=10)
    """

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
        self.sets = Sets(_home(network))

    @classmethod
    def of(cls, module: nn.Module, **options: Any) -> Self:
        """A module that has `training_step` and `configure_optimizers`, as it is."""
        recipe = recipe_of(module)
        callbacks = [*recipe.pop("callbacks"), *options.pop("callbacks", ())]
        return cls(module, callbacks=callbacks, **{**recipe, **options})

    # ---- what it is given ----

    def to(self, device: DeviceLike = "auto", precision: str | None = None) -> Self:
        """Trains there, in this precision: "fp32", "tf32", "bf16", "fp16" or "auto"."""
        place = exact(pick(device))
        self.precision = precision_of(precision or self.precision.name, place)
        self.network = move(self.network, place)
        for beside in (self.loss, self._wanted_optimizer):
            if isinstance(beside, (nn.Module, torch.optim.Optimizer)):
                move(beside, place)
        if self._job:
            self._job.autocast, self._job.scaler = self.precision.autocast, self.precision.scaler()
            self._job.gradients = self._gradients()
        self.sets.to(place)
        return self

    def with_options(self, **options: Any) -> Self:
        """Sets accumulate, clip_norm, compile, channels_last, deterministic, seed or on_oom."""
        known = Options.__dataclass_fields__
        if strangers := options.keys() - known:
            raise UsageError(
                f"expected options among {', '.join(known)}, got {', '.join(sorted(strangers))}."
            )
        if self._job and self._job.step:
            raise UsageError(
                f"expected options before the first step, got them after {self._job.step}: "
                "make another trial with them."
            )
        self.options = replace(self.options, **options)
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

    # ---- what it does ----

    def run(self, epochs: int, verbose: bool = True) -> History:
        """Trains until the history has so many epochs; a second call goes on from there."""
        job = self.job
        self._with_optimizer(job)
        keeper = [self._keeper] if self._keeper else []
        callbacks = [*self.callbacks, *([Progress()] if verbose else []), *keeper]
        react = reactions(callbacks, self)
        job.after_step = [react["on_step"]] if listeners(callbacks, "on_step") else []
        self.stopped, job.batches = False, 0  # an epoch that was broken off is begun anew
        with self._settings(), self._keeper.listening() if self._keeper else nullcontext():
            if self._keeper:
                self._keeper.go_on(self)
            react["on_start"]()
            try:
                while self.epoch < epochs and not self.stopped:
                    react["on_start_epoch"]()
                    self.history.append(self._epoch(job))
                    react["on_end_epoch"]()
            finally:
                react["on_end"]()
        return self.history

    def evaluate(self, data: Any = None, *, batch_size: int = 1000) -> dict[str, float]:
        """The metrics over `data`, or over the validation (else test) data of the trial."""
        if data is not None:
            batches = self.sets.over(data, batch_size)
        else:
            batches = self.sets.named("val" if "val" in self.sets.given else "test")
        with self._settings():
            return self._measured(self.job, batches)

    def predict(self, data: Any, *, batch_size: int = 1000) -> Any:
        """The network's outputs for all of `data`, on the CPU."""
        outputs = list(self.predictions(data, batch_size=batch_size))
        return torch.utils._pytree.tree_map(_joined, *outputs) if outputs else None

    def predictions(self, data: Any, *, batch_size: int = 1000) -> Iterator[Any]:
        """The outputs batch by batch, for data that does not end or whose outputs do not fit."""
        self._initialise_lazy()
        for batch in self.sets.over(data, batch_size):
            with as_it_was(self.network), torch.inference_mode(), self.precision.autocast:
                output = _answer(self.network.eval(), batch)
            yield move(output, "cpu")

    def export(self, path: str | Path, example: Any = None, device: DeviceLike = "cpu") -> Path:
        """Writes the network for use without anydevice: `torch.export.load(path).module()(x)`.

        `example` is a batch of inputs; without one, the first training batch is.
        """
        if example is None:
            batch = next(iter(self.sets.named("train")))
            example = tuple(batch[:-1]) if isinstance(batch, (tuple, list)) else batch
        return export(self.network, example, Path(path), pick(device))

    def save(self, folder: str | Path) -> Path:
        """Keeps the trial in a folder, from which `Trial.load` makes it again."""
        checkpoints = Checkpoints(Path(folder), keep=1)
        return checkpoints.add(self.network, self.state())

    @classmethod
    def load(cls, folder: str | Path, network: nn.Module, *arguments: Any, **options: Any) -> Self:
        """The trial kept there, around this network, with what `Trial(network, …)` takes.

        Names of optimizer, loss and metrics are kept; what had no name is given again.
        """
        path = Checkpoints(Path(folder)).newest()
        if path is None:
            raise UsageError(f"expected a trial saved in {folder}, got nothing of the kind there.")
        state = read(path, network)
        names = dict(zip(("optimizer", "loss", "metrics"), arguments, strict=False)) | options
        trial = cls(network, **{**state["names"], **names})
        trial.set_state(state)
        return trial

    def state(self) -> dict[str, Any]:
        """Everything that goes on from here depends on, but for the network."""
        job = self.job
        return {
            "names": self._names,
            "random": random_state(self.device, self.train_data),
            "history": list(self.history),
            "step": job.step,
            "batches": job.batches,
            "stopped": self.stopped,
            "parts": self._fitting.parts,
            "seed": self.sets.seed,
            "optimizer": job.optimizer.state_dict() if job.optimizer else None,
            "loss": self.loss.state_dict() if isinstance(self.loss, nn.Module) else None,
            "scaler": job.scaler.state_dict() if job.scaler else None,
            "skipped": int(job.skipped),
            "metrics": self.metrics.state() if job.batches else None,
            "callbacks": [c.state_dict() for c in self._with_state()],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Takes up what `state()` gave."""
        job = self.job
        self.history, self.stopped = History(state["history"]), state["stopped"]
        self._fitting.parts = state["parts"]
        job.step, job.batches, self.sets.seed = state["step"], state["batches"], state["seed"]
        if state["optimizer"] and self._wanted_optimizer is not None:
            take_up(self._with_optimizer(job), state["optimizer"])
        if state["loss"] and isinstance(self.loss, nn.Module):
            self.loss.load_state_dict(state["loss"])
        if state["scaler"] and job.scaler:
            job.scaler.load_state_dict(state["scaler"])
        job.skipped = state["skipped"]
        if state["metrics"]:
            self.metrics.set_state(state["metrics"], self.device)
        for callback, kept in zip(self._with_state(), state["callbacks"], strict=False):
            callback.load_state_dict(kept)

    def stop(self) -> None:
        """Ends the run after this epoch."""
        self.stopped = True

    @property
    def epoch(self) -> int:
        """How many epochs are done."""
        return len(self.history)

    @property
    def device(self) -> torch.device:
        """Where it trains."""
        return self.precision.device

    @property
    def train_data(self) -> Any:
        """The training data as it was given."""
        given = self.sets.given.get("train")
        return given.data if given else None

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer, built if it is not yet."""
        return self._with_optimizer(self.job)

    # ---- how ----

    def _epoch(self, job: Job) -> dict[str, Any]:
        begin, self.sets.epoch = perf_counter(), self.epoch
        if not job.batches:
            self.metrics.reset(self.device)
        batches = self.sets.named("train")
        train_epoch(job, self._keeper.rest(batches, self) if self._keeper else batches)
        if not job.batches:
            raise UsageError(
                f"expected batches to train on in epoch {self.epoch + 1}, got none: is the data "
                "empty, or a generator that is spent after one pass?"
            )
        job.batches = 0  # the epoch's training is over: its metrics need not be kept
        record = {"epoch": self.epoch + 1, **self.metrics.read()}
        if job.scaler:
            record["skipped"], job.skipped = int(job.skipped), 0
        if "val" in self.sets.given:
            figures = self._measured(job, self.sets.named("val"))
            record |= {f"val_{name}": figure for name, figure in figures.items()}
        return {**record, "seconds": perf_counter() - begin}

    def _measured(self, job: Job, batches: Iterable[Any]) -> dict[str, float]:
        training = self.metrics.state() if job.batches else None  # asked in the middle of an epoch
        self.metrics.reset(self.device)
        with as_it_was(self.network):
            measured = evaluate(job, batches)
        if not measured:
            raise UsageError("expected batches to measure with, got none: is the data empty?")
        figures = self.metrics.read()
        if training:
            self.metrics.set_state(training, self.device)
        return figures

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
        self._fitting = Fitting(self.device, self._fitting.parts)
        return self._fitting.gradients if survives else gradients

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
        batch = next(iter(self.sets.named("train")))
        with as_it_was(self.network), torch.no_grad():
            forward_of(self.loss, self._step)(self.network.eval(), batch)


def _home(network: nn.Module) -> torch.device:
    """Where the network is already."""
    first = next(network.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def _answer(network: nn.Module, batch: Any) -> Any:
    """The output for a batch's inputs; a target that comes along is left out."""
    if isinstance(batch, Mapping):
        return network(**without_target(batch))
    if isinstance(batch, (tuple, list)):
        return network(*(batch if len(batch) == 1 else batch[:-1]))
    return network(batch)


def _joined(*parts: Any) -> Any:
    if not isinstance(parts[0], Tensor):
        return parts[0] if len(set(map(repr, parts))) == 1 else list(parts)
    return torch.cat(parts) if parts[0].dim() else torch.stack(parts)
