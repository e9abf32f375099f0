"""One training run: a network, an optimizer, a loss, and data, on any device."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from time import perf_counter
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from anydevice.devices.choose import DeviceLike, exact, pick
from anydevice.devices.move import move
from anydevice.errors import UsageError
from anydevice.train import callbacks as moments
from anydevice.train.batches import batches_of, tensors_of
from anydevice.train.forward import Step, forward_of, without_target
from anydevice.train.history import History
from anydevice.train.images import Standardised, are_bytes, statistics
from anydevice.train.loop import Job, evaluate, train_epoch
from anydevice.train.metrics import Metrics
from anydevice.train.options import Options, determinism
from anydevice.train.precision import precision_of
from anydevice.train.recipes import Loss, OptimizerLike, loss_of, optimizer_of

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
        self._step = step
        self._data: dict[str, Any] = {}
        self._sizes: dict[str, Any] = {}
        self._batches: dict[str, Iterable[Any]] = {}
        self._job: Job | None = None
        self._seed: int | None = None

    # ---- what it is given ----

    def to(self, device: DeviceLike = "auto", precision: str | None = None) -> Self:
        """Trains there, in this precision: "fp32", "tf32", "bf16", "fp16" or "auto"."""
        place = exact(pick(device))
        self.precision = precision_of(precision or self.precision.name, place)
        self.network = move(self.network, place)
        if self._job:
            if self._job.optimizer:
                move(self._job.optimizer, place)
            self._job.autocast, self._job.scaler = self.precision.autocast, self.precision.scaler()
        self._batches.clear()
        return self

    def with_options(self, **options: Any) -> Self:
        """Sets accumulate, clip_norm, compile, channels_last, deterministic or seed."""
        known = Options.__dataclass_fields__
        if strangers := options.keys() - known:
            raise UsageError(
                f"expected options among {', '.join(known)}, got {', '.join(sorted(strangers))}."
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
                self._data[name] = data
                self._sizes[name] = batch_size, shuffle and name == "train"
                self._batches.pop(name, None)
        return self

    # ---- what it does ----

    def run(self, epochs: int, verbose: bool = True) -> History:
        """Trains until the history has so many epochs; a second call goes on from there."""
        job = self._prepared()
        self._with_optimizer(job)
        callbacks = [*self.callbacks, *([moments.Printed()] if verbose else [])]
        react = moments.reactions(callbacks, self)
        job.after_step = [react["on_step"]] if moments.listeners(callbacks, "on_step") else []
        self.stopped = False
        with self._settings():
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
            batches = self._batches_over(data, batch_size, shuffled=False)
        else:
            batches = self._batches_named("val" if "val" in self._data else "test")
        with self._settings():
            return self._measured(self._prepared(), batches)

    def predict(self, data: Any, *, batch_size: int = 1000) -> Any:
        """The network's outputs for all of `data`, on the CPU."""
        outputs = list(self.predictions(data, batch_size=batch_size))
        return torch.utils._pytree.tree_map(_joined, *outputs) if outputs else None

    def predictions(self, data: Any, *, batch_size: int = 1000) -> Iterator[Any]:
        """The outputs batch by batch, for data that does not end or whose outputs do not fit."""
        self._prepared()
        for batch in self._batches_over(data, batch_size, shuffled=False):
            self.network.eval()
            with torch.inference_mode(), self.precision.autocast:
                output = _answer(self.network, batch)
            yield move(output, "cpu")

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
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer, built if it is not yet."""
        return self._with_optimizer(self._prepared())

    # ---- how ----

    def _epoch(self, job: Job) -> dict[str, Any]:
        begin, before = perf_counter(), job.step
        self.metrics.reset(self.device)
        train_epoch(job, self._batches_named("train"))
        if job.step == before:
            raise UsageError(
                f"expected batches to train on in epoch {self.epoch + 1}, got none: is the data "
                "empty, or a generator that is spent after one pass?"
            )
        record = {"epoch": self.epoch + 1, **self.metrics.read()}
        if "val" in self._data:
            figures = self._measured(job, self._batches_named("val"))
            record |= {f"val_{name}": figure for name, figure in figures.items()}
        return {**record, "seconds": perf_counter() - begin}

    def _measured(self, job: Job, batches: Iterable[Any]) -> dict[str, float]:
        self.metrics.reset(self.device)
        evaluate(job, batches)
        return self.metrics.read()

    def _prepared(self) -> Job:
        if self._job is None:
            if self.options.seed is not None:
                torch.manual_seed(self.options.seed)
            self._initialise_lazy()
            network: Any = self.network
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
            )
        return self._job

    def _with_optimizer(self, job: Job) -> torch.optim.Optimizer:
        """The job's optimizer, built once the network's parameters are what they will be."""
        if job.optimizer is None:
            job.optimizer = optimizer_of(self._wanted_optimizer, self.network, self.loss)
            self._wanted_optimizer = job.optimizer
        return job.optimizer

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
        batch = next(iter(self._batches_named("train")))
        training = self.network.training
        with torch.no_grad():
            forward_of(self.loss, self._step)(self.network.eval(), batch)
        self.network.train(training)

    def _batches_named(self, name: str) -> Iterable[Any]:
        if name not in self._batches:
            if name not in self._data:
                raise UsageError(
                    f"expected {name} data, got none: give it by trial.with_generators({name})."
                )
            batch_size, shuffled = self._sizes[name]
            self._batches[name] = self._batches_over(self._data[name], batch_size, shuffled)
        return self._batches[name]

    def _batches_over(self, data: Any, batch_size: int, shuffled: bool) -> Iterable[Any]:
        order = self._shuffled if shuffled else _as_they_come
        batches = batches_of(data, self.device, batch_size=batch_size, order=order)
        tensors = tensors_of(data)
        if tensors and are_bytes(tensors[0]):
            return Standardised(batches, *self._statistics(tensors[0]))
        return batches

    def _statistics(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Of the training images, whichever are looked at; of these where there are none."""
        known = tensors_of(self._data.get("train"))
        mean, scale = statistics(known[0] if known and are_bytes(known[0]) else images)
        return mean.to(self.device), scale.to(self.device)

    def _shuffled(self, samples: int) -> Callable[[torch.device], Tensor]:
        """A new order each epoch, from the seed and the epoch alone, drawn where the data is."""

        def order(device: torch.device) -> Tensor:
            if self._seed is None:
                self._seed = int(torch.randint(2**48, ()))
            generator = torch.Generator(device).manual_seed(self._seed + self.epoch)
            return torch.randperm(samples, generator=generator, device=device)

        return order


def _as_they_come(samples: int) -> Callable[[torch.device], None]:
    return lambda device: None


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
    return torch.cat(parts) if isinstance(parts[0], Tensor) and parts[0].dim() else parts[0]
