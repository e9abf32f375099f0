"""One training run: a network, an optimizer, a loss, and data, on any device."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from anydevice.devices.choose import DeviceLike, exact, pick, try_gpu
from anydevice.devices.move import move
from anydevice.errors import UsageError, names_checked, names_in
from anydevice.tables import show_text
from anydevice.train import shortage, state
from anydevice.train.callbacks.callback import checked
from anydevice.train.callbacks.progress import line_of
from anydevice.train.callbacks.schedule import scheduled, with_schedule
from anydevice.train.checkpoint.checkpoints import Checkpoints, malformed, read
from anydevice.train.checkpoint.resume import NAMED, Keeper, of_all_ranks, of_this_rank
from anydevice.train.copies import copied, optimizer_over
from anydevice.train.data.samples import loaded
from anydevice.train.data.sets import Sets
from anydevice.train.distributed.failing import Watch
from anydevice.train.distributed.strategy import Strategy
from anydevice.train.export import export
from anydevice.train.faces.forms import Forms, set_named
from anydevice.train.faces.lightning import recipe_of
from anydevice.train.history import History
from anydevice.train.layers import Frozen, optimizer_with_rates
from anydevice.train.loop.epochs import epoch_of, measured, reactions_of
from anydevice.train.loop.forward import Step, answer, joined
from anydevice.train.loop.job import (
    Recipe,
    first_batch,
    forward_for,
    gradients_of,
    initialise_lazy,
    job_of,
    share_out,
)
from anydevice.train.loop.loop import Job, as_it_was
from anydevice.train.loop.precision import precision_of
from anydevice.train.metrics.metrics import Metrics
from anydevice.train.options import KEEP, Options, determinism
from anydevice.train.questions.questions import Questions
from anydevice.train.ranks import Ranks, own_device, together
from anydevice.train.recipes import Loss, OptimizerLike, loss_of, refuse_unknown_optimizer

SETS = ("train", "val", "test")

# What a thread's trials do instead of their loop; set by a sweep that trains several as one.
instead: ContextVar[Callable[["Trial", int], History] | None] = ContextVar("instead", default=None)


class Trial(Questions, Forms):
    """A training run.

    Args:
        network: Any `nn.Module`. Lazy modules take their sizes from the first batch.
        optimizer: A name in `torch.optim` such as `"adam"`, a function of the parameters, or an
            optimizer. None for a trial that only evaluates and predicts.
        loss: A name in `torch.nn.functional` with or without `_loss`, such as `"cross_entropy"`;
            a function or module of outputs and targets that returns one number; or None for a
            network that returns its own loss.
        metrics: What to measure each epoch: `"loss"`, `"accuracy"`, `"top5"`, `"mse"`, `"mae"`, a
            function of outputs and targets, a torchmetrics `Metric`, or a pair of a name and one
            of these.
        callbacks: Objects with methods such as `on_end_epoch(trial)`; see `Callback`. Also a
            scheduler of `torch.optim.lr_scheduler`, made of the optimizer that is given.
        step: Your own function of network and batch, for batches of any shape. It returns the
            loss, `(loss, output)`, or a dictionary with `"loss"` and `"output"`.
        criterion: Another name for `loss`.
        verbose: Whether runs show progress, unless `run` says otherwise.

    Attributes:
        history: One record for each epoch; see `History`.
        ranks: With several processes, this one's `rank`, their number `world`, and more.

    Raises:
        UsageError: If a name is not known, two metrics have the same name, or a callback has no
            method that would be called.

    Example:
        >>> trial = ad.Trial(network, "adam", "cross_entropy", metrics=["loss", "accuracy"])
        >>> trial = trial.to("auto").with_generators((x, y))
        >>> history = trial.run(epochs=2, verbose=False)
        >>> len(history)
        2
    """

    @names_checked
    def __init__(
        self,
        network: nn.Module,
        optimizer: OptimizerLike | None = "adam",
        loss: str | Loss | None = None,
        metrics: Sequence[Any] = ("loss",),
        callbacks: Sequence[Any] = (),
        *,
        step: Step | None = None,
        criterion: str | Loss | None = None,
        verbose: bool | int = True,
    ) -> None:
        _refuse_no_module(network)
        refuse_unknown_optimizer(optimizer)
        if loss is not None and criterion is not None:
            raise UsageError("expected one loss, got loss= and criterion=: leave one out.")
        loss = criterion if loss is None else loss
        self.recipe = Recipe(optimizer, loss, metrics, step)
        self.network = network
        self.loss = loss_of(loss)
        self.metrics = Metrics(metrics)
        self.callbacks = scheduled(checked(callbacks), optimizer)
        self.history = History()
        self.options = Options()
        self.precision = precision_of("fp32", _home(network))
        self.sets = Sets(_home(network))
        self.frozen = Frozen()
        self.verbose = bool(verbose)
        self.stopped = False
        self.max_epochs: int | None = None  # of fit()
        self.epochs = 0  # that the run under way, or the last one, goes to
        self.keeper: Keeper | None = None  # of checkpoints
        self.ranks: Ranks | None = None  # those that train together, once they have met
        self._strategy: Strategy | None = None  # how they do
        self.optimizer_like = optimizer  # what builds it, then itself
        self._job: Job | None = None

    # ---- what it is given ----

    @classmethod
    def of(
        cls,
        module: nn.Module,
        *,
        max_epochs: int | None = None,
        num_gpus: int | None = None,
        gradient_clip_val: float | None = None,
        **options: Any,
    ) -> Self:
        """A trial of a module that brings its own `training_step` and `configure_optimizers`.

        Args:
            module: As Lightning's or d2l's. What it logs is averaged over the epoch.
            max_epochs: How many epochs `fit()` trains.
            num_gpus: 1 to train on a GPU, if there is one; 0 for the CPU.
            gradient_clip_val: As `with_options(clip_norm=…)`; 0 is none.
            options: Arguments of `Trial`, which take precedence over the module's own.

        Raises:
            UsageError: If the module has no such methods, or several optimizers, or there are to
                be several GPUs.

        Example:
            >>> history = ad.Trial.of(module).with_generators((x, y)).run(1, verbose=False)
        """
        names_in(options, cls.of, cls.__init__)
        recipe = recipe_of(module)
        callbacks = [*recipe.pop("callbacks"), *options.pop("callbacks", ())]
        trial = cls(module, callbacks=callbacks, **{**recipe, **options})
        trial.max_epochs = max_epochs
        if num_gpus is not None and num_gpus > 1:
            raise UsageError(
                f"expected num_gpus of 0 or 1 in one process, got {num_gpus}: start the program "
                "with torchrun, a process for each GPU."
            )
        if gradient_clip_val:
            trial.with_options(clip_norm=gradient_clip_val)
        return trial if num_gpus is None else trial.to(try_gpu() if num_gpus else "cpu")

    @names_checked
    def to(self, device: DeviceLike = "auto", precision: str | None = None) -> Self:
        """Trains there, in this precision.

        Args:
            device: As in `ad.pick`: `"auto"`, `"cuda:1"`, `"cpu"`, an index, a `torch.device`.
            precision: `"fp32"`, `"tf32"`, `"bf16"`, `"fp16"` (with a GradScaler; the record counts
                the steps that it skipped) or `"auto"`, the fastest that trains safely there.

        Raises:
            DeviceNotFound: If the device is not here.
            UsageError: If the network is sharded already.

        Example:
            >>> trial = ad.Trial(network, "adam", "cross_entropy").to("cpu", precision="bf16")
        """
        place = own_device(exact(pick(device)))
        if self.is_sharded:
            raise UsageError("expected .to() before the network is sharded, got it after.")
        self.precision = precision_of(precision or self.precision.name, place)
        self.network = move(self.network, place)
        for part in (self.loss, self.optimizer_like):
            if isinstance(part, (nn.Module, Optimizer)):
                move(part, place)
        if self._job:
            self._job.autocast, self._job.scaler = self.precision.autocast, self.precision.scaler()
            if self._strategy:  # it is made again for the other device
                self._job.network, self._strategy = self._strategy.network, None
            self._job.gradients = gradients_of(self.options, place)
        self.sets.to(place)
        return self

    @names_checked
    def with_options(
        self,
        *,
        accumulate: int = KEEP,
        clip_norm: float | None = KEEP,
        clip_value: float | None = KEEP,
        schedule: str | None = KEEP,
        warmup: float = KEEP,
        rates: Mapping[str, float] = KEEP,
        freeze: str | Sequence[str] = KEEP,
        label_smoothing: float = KEEP,
        mixup: float = KEEP,
        compile: bool = KEEP,
        channels_last: bool = KEEP,
        deterministic: bool = KEEP,
        seed: int | None = KEEP,
        on_oom: str = KEEP,
        strategy: str = KEEP,
    ) -> Self:
        """Sets how to train.

        Args:
            accumulate: How many batches make a step; its gradient is that of the mean over
                their samples.
            clip_norm: The largest norm of the gradients of a step.
            clip_value: The largest size of each number of the gradients.
            schedule: `"cosine"`, `"linear"` or `"constant"`: how the learning rates go down over
                the run, step by step.
            warmup: The steps in which the rates rise at first, or their share of the run.
            rates: Learning rates of layers by their names: `{"encoder*": 1e-5}`.
            freeze: The layers that do not train, by patterns: `"encoder*"`, or a list; `[]` has
                them train again.
            label_smoothing: How much of each target is spread over all classes while training.
            mixup: Mixes each sample with another one while training; the larger, the more equally
                (both weights are drawn from a Beta distribution with this parameter).
            compile: Whether to train through `torch.compile`.
            channels_last: Whether images are kept with their channels last in memory.
            deterministic: Whether to use algorithms that give the same bits each time.
            seed: The seed of weights made later, dropout and the order of samples.
            on_oom: `"split"` splits a batch that does not fit into a GPU's memory, `"raise"`
                raises the error.
            strategy: How the processes that torchrun starts train together: `"ddp"`,
                `"fsdp"`, or `"alone"`, each for itself.

        Raises:
            UsageError: If an option or its value is not known, or comes too late: after the first
                step, only accumulate, clipping, deterministic, freeze, label_smoothing, mixup and
                on_oom can change.

        Example:
            >>> trial = trial.with_options(accumulate=4, clip_norm=1.0)
            >>> trial = trial.with_options(schedule="cosine", warmup=0.05)
        """
        options = {
            "accumulate": accumulate,
            "clip_norm": clip_norm,
            "clip_value": clip_value,
            "schedule": schedule,
            "warmup": warmup,
            "rates": rates,
            "freeze": freeze,
            "label_smoothing": label_smoothing,
            "mixup": mixup,
            "compile": compile,
            "channels_last": channels_last,
            "deterministic": deterministic,
            "seed": seed,
            "on_oom": on_oom,
            "strategy": strategy,
        }
        job = self._job if self._job and self._job.step else None
        before = self.options
        self.options = self.options.changed(options, job.step if job else 0)
        try:
            self._take_up(before, job)
        except UsageError:
            self.options = before
            raise
        return self

    def _take_up(self, before: Options, job: Job | None) -> None:
        """Does as the options say from here on."""
        now = self.options
        if now.frozen != before.frozen:
            if self._strategy is not None:
                raise UsageError("expected freeze before several ranks train, got it after.")
            self.frozen.only(self.network, now.frozen)
        if (now.schedule, now.warmup) != (before.schedule, before.warmup):
            self.callbacks = with_schedule(self.callbacks, now.schedule, now.warmup)
        forward = forward_for(self)
        if job is None:
            self._job = None
            return
        job.accumulate, job.clip_norm = now.accumulate, now.clip_norm
        job.clip_value = now.clip_value
        if (now.label_smoothing, now.mixup) != (before.label_smoothing, before.mixup):
            if self._strategy is not None:
                raise UsageError("expected softer targets before several ranks train.")
            job.forward = forward
        job.gradients = gradients_of(now, self.device, self._strategy)

    @names_checked
    def with_generators(
        self,
        train_generator: Any = None,
        val_generator: Any = None,
        test_generator: Any = None,
        *,
        batch_size: int = 100,
        shuffle: bool = True,
        train: Any = None,
        val: Any = None,
        test: Any = None,
        train_steps: int | None = None,
        val_steps: int | None = None,
        test_steps: int | None = None,
    ) -> Self:
        """Sets the data: tensors, arrays, a Dataset, a DataLoader or any iterable of batches.

        Args:
            train_generator: The data to train on; or a DataModule with `train_dataloader()`, or a
                dictionary of sets, which may have the other sets too.
            val_generator: The data to measure on after each epoch.
            test_generator: The data that `evaluate()` measures on where there is none of these.
            batch_size: The size of a batch, for data that comes without batches.
            shuffle: Whether each epoch draws a new order of the training samples, for such data.
            train: Another name for `train_generator`.
            val: Another name for `val_generator`.
            test: Another name for `test_generator`.
            train_steps: The batches of an epoch; see `for_steps`.
            val_steps: The batches of the validation after it.
            test_steps: The batches of the test data.

        Raises:
            UsageError: If a set is given twice, or the batch size is not a whole number above 0.

        Example:
            >>> trial = trial.with_generators((x, y), batch_size=50)
        """
        if not isinstance(batch_size, int) or batch_size < 1:
            raise UsageError(f"expected a batch_size of 1 or more, got {batch_size!r}.")
        modules = loaded(train_generator if train is None else train)
        if modules:
            train_generator, train = modules.pop("train"), None
            val = modules.get("val") if val is None and val_generator is None else val
            test = modules.get("test") if test is None and test_generator is None else test
        given = (train_generator, val_generator, test_generator)
        for name, data, same in zip(SETS, given, (train, val, test), strict=True):
            if data is not None and same is not None:
                raise UsageError(f"expected {name} data once, got {name}_generator= and {name}=.")
            if (data := same if data is None else data) is not None:
                self.sets.give(name, data, batch_size, shuffle and name == "train")
        return self.for_steps(train_steps, val_steps, test_steps)

    @names_checked
    def checkpoint(self, folder: str | Path, *, every: int | None = None, keep: int = 2) -> Self:
        """Writes checkpoints into a folder, and resumes from the newest one there.

        A run that was interrupted, in any way, ends with the same bits as one that was not. On
        SIGTERM it finishes the step, writes a checkpoint and exits with code 143.

        Args:
            folder: Where to write. Each checkpoint is a folder of safetensors and JSON.
            every: After how many steps to write one; without it, at the end of each epoch alone.
            keep: How many of the newest to keep.

        Raises:
            UsageError: If `every` or `keep` is below 1.

        Example:
            >>> trial = trial.checkpoint(folder, every=100)
        """
        self.keeper = Keeper(Checkpoints(Path(folder), every, keep))
        return self

    # ---- what it does ----

    @names_checked
    def run(self, epochs: int = 1, verbose: bool | int | None = None) -> History:
        """Trains until the history has this many epochs; a second call continues from there.

        Args:
            epochs: The number of epochs, with those already done.
            verbose: Whether to show a progress bar and a line for each epoch; without it, or with
                -1, as the trial's own `verbose` says.

        Returns:
            The history, with a record for each epoch.

        Raises:
            UsageError: If there is no training data, or `epochs` is not a whole number.
            RankError: If another rank failed.

        Example:
            >>> history = trial.run(epochs=3, verbose=False)
            >>> history[-1]["epoch"]
            3
        """
        if not isinstance(epochs, int) or isinstance(epochs, bool) or epochs < 0:
            raise UsageError(f"expected a whole number of epochs, got {epochs!r}.")
        if in_its_place := instead.get():
            return in_its_place(self, epochs)
        job, self.epochs = self.job, epochs
        with ExitStack() as stack:
            watch = stack.enter_context(self._together())
            stack.enter_context(self.settings())
            job.optimizer = self.optimizer
            react = reactions_of(self, self.verbose if verbose in (None, -1) else bool(verbose))
            # They hold the Trial: in a cycle with its loader, workers would end after 5 s each.
            stack.callback(job.after_step.clear)
            self.stopped, job.batches = False, 0  # an epoch that was broken off starts anew
            if self.keeper:
                stack.enter_context(self.keeper.listening(watch))
                self.keeper.go_on(self)
            react["on_start"]()
            try:
                while self.epoch < epochs and not self.stopped:
                    react["on_start_epoch"]()
                    self.history.append(epoch_of(self))
                    react["on_end_epoch"]()
                    self.stopped = self.ranks.any(self.stopped) if self.ranks else self.stopped
            except Exception as error:
                if isinstance(error, torch.OutOfMemoryError) and not self.is_sharded:
                    shortage.add_note(self, error, job.batch)
                if watch:
                    watch.failed(error)
                raise
            finally:
                react["on_end"]()
        return self.history

    def stop(self) -> None:
        """Ends the run after this epoch, on all ranks."""
        self.stopped = True

    @names_checked
    def evaluate(
        self,
        data: Any = None,
        *,
        batch_size: int = 1000,
        data_key: Any = None,
        verbose: bool | int = False,
    ) -> dict[str, float]:
        """Measures the metrics.

        Args:
            data: The data; without it, the validation data of the trial, or else its test data.
            batch_size: The size of a batch, for data that comes without batches.
            data_key: Instead of data, which of the trial's own: "train", "val" or "test".
            verbose: Whether to print the figures.

        Returns:
            The figures by the names of the metrics.

        Example:
            >>> trial.evaluate((x, y))
            {'loss': ...}
        """
        with self._together(), self.settings():
            if data is not None:
                if data_key is not None:
                    raise UsageError("expected data or a data_key, got both: leave one out.")
                figures = measured(self, self.sets.shared(data, batch_size))
            else:
                default = "val" if "val" in self.sets.given else "test"
                name = default if data_key is None else set_named(data_key)
                figures = measured(self, self.sets.named(name))
        if verbose > 0:
            show_text(line_of(figures))
        return figures

    @names_checked
    def predict(
        self,
        data: Any = None,
        *,
        batch_size: int = 1000,
        data_key: Any = None,
        verbose: bool | int = False,
    ) -> Any:
        """Runs the network on all of `data`.

        Args:
            data: Inputs as the trial's own data, with or without targets; without it, the test
                data of the trial.
            data_key: Instead of data, which of the trial's own: "train", "val" or "test".
            batch_size: The size of a batch, for data that comes without batches.
            verbose: Of no effect: there is nothing to show.

        Returns:
            The outputs of all batches joined, on the CPU.

        Example:
            >>> trial.predict(x[:5]).argmax(1).shape
            torch.Size([5])
        """
        if data is None:
            name = "test" if data_key is None else set_named(data_key)
            data = self.sets.of(name).data
        return joined(list(self.predictions(data, batch_size=batch_size)))

    def predictions(self, data: Any, *, batch_size: int = 1000) -> Iterator[Any]:
        """As `predict`, batch by batch: for data without an end, or outputs too large to keep.

        Example:
            >>> [len(output) for output in trial.predictions(x[:5], batch_size=2)]
            [2, 2, 1]
        """
        initialise_lazy(self)
        for batch in self.sets.over(data, batch_size):
            still = torch.no_grad() if self.is_sharded else torch.inference_mode()
            with as_it_was(self.network), still, self.precision.autocast:
                output = answer(self.network.eval(), batch)
            yield move(output, "cpu")

    @names_checked
    def export(self, path: str | Path, example: Any = None, device: DeviceLike = "cpu") -> Path:
        """Writes the network for use without anydevice: `torch.export.load(path).module()(x)`.

        Args:
            path: The file, which is replaced if it exists.
            example: A batch of inputs; without it, the first training batch.
            device: Where the exported network runs.

        Raises:
            UsageError: If the network is sharded, or the example has no samples along dimension 0.

        Example:
            >>> path = trial.export(folder / "network.pt2", x[:1])
        """
        if self.is_sharded:
            raise UsageError(
                'expected a whole network to export, got one sharded by strategy="fsdp": save it, '
                "then load and export it in one process."
            )
        if example is None:
            batch = first_batch(self)
            example = tuple(batch[:-1]) if isinstance(batch, (tuple, list)) else batch
        return export(self.network, example, Path(path), pick(device))

    def save(self, folder: str | Path) -> Path | None:
        """Saves the trial: weights, optimizer, history and random state.

        A trial that was saved in the folder before is replaced.

        Example:
            >>> path = trial.save(folder / "trial")
            >>> trial = ad.Trial.load(folder / "trial", network)
        """
        with self._together():
            now = of_all_ranks(self.state(), {}, self.ranks)
            path = state.write(self, Checkpoints(Path(folder), keep=1), now)
            return self.ranks.told(path) if self.ranks else path

    @classmethod
    def load(cls, folder: str | Path, network: nn.Module, *arguments: Any, **options: Any) -> Self:
        """A trial that `save` wrote.

        Args:
            folder: Where it was saved.
            network: A network of the same shape, which gets the weights.
            arguments: What `Trial` takes after the network. Names of optimizer, loss and metrics
                were saved; give again what was not a name.
            options: The same, by name.

        Raises:
            UsageError: If there is no such trial, or it is of another network.
            CheckpointError: If a file is damaged.
        """
        path = Checkpoints(Path(folder)).intact()
        if path is None:
            raise UsageError(f"expected a trial saved in {folder}, got none.")
        with malformed(path):
            saved = of_this_rank(read(path, network))
        given = dict(zip(NAMED, arguments, strict=False)) | options
        trial = cls(network, **{**saved["names"], **given})
        with malformed(path):
            trial.set_state(saved)
        return trial

    def copied(self, device: DeviceLike | None = None, precision: str | None = None) -> "Trial":
        """A new trial of a copy of the network, with the same data, options, metrics and loss.

        Its optimizer is of the same kind, without state; it has no callbacks and no history.

        Args:
            device: Where the copy trains; without it, where this trial does.
            precision: As in `to`; without it, that of this trial.

        Raises:
            UsageError: If the network is sharded.

        Example:
            >>> half = trial.copied(precision="bf16")
        """
        if self.is_sharded:
            raise UsageError("expected a whole network to copy, got one that is sharded.")
        place = self.device if device is None else exact(pick(device))
        network, known = copied(self.network, place)
        if self.recipe.has_own_steps:
            other = Trial.of(network)
        else:
            loss: Any = self.loss
            if isinstance(loss, nn.Module):
                loss, known = copied(loss, place, known)
            optimizer = optimizer_over(known, self.optimizer_like)
            other = Trial(network, optimizer, loss, step=self.recipe.step)
            other.metrics = copy.deepcopy(self.metrics)
        other.options, other.sets.given = self.options, dict(self.sets.given)
        other.sets.to(place)
        other.precision = precision_of(precision or self.precision.name, place)
        return other

    # ---- what it has ----

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
        """Whether this process has a shard of the network instead of the whole."""
        return self._strategy is not None and self._strategy.is_sharded

    @property
    def train_data(self) -> Any:
        """The training data as it was given."""
        given = self.sets.given.get("train")
        return given.data if given else None

    @property
    def job(self) -> Job:
        """What the loop works on, made when it is first needed."""
        if self._job is None:
            self._job = job_of(self)
        return self._job

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer, built when it is first needed; another can be set before the first step.

        >>> trial.optimizer.param_groups[0]["lr"]
        0.001
        """
        job = self.job
        if job.optimizer is None:
            with self.frozen.thawed():
                job.optimizer = optimizer_with_rates(
                    self.optimizer_like, self.network, self.loss, self.options.rates
                )
            self.optimizer_like = job.optimizer
        return job.optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Optimizer) -> None:
        if self.job.step:
            raise UsageError(
                f"expected another optimizer before the first step, got it after {self.job.step}: "
                "make another trial with it."
            )
        self.job.optimizer = self.optimizer_like = optimizer

    def state(self) -> dict[str, Any]:
        """Everything that the training depends on from here, except for the network."""
        return state.state_of(self)

    def set_state(self, saved: dict[str, Any]) -> None:
        """Continues from what `state()` returned."""
        state.restore(self, saved)

    def whole_state(self) -> dict[str, Tensor]:
        """The network's state_dict on the CPU; all ranks gather a sharded one together."""
        return state.gathered(self.network)

    def set_whole_state(self, weights: dict[str, Tensor]) -> None:
        """Loads what `whole_state()` returned."""
        if self.is_sharded:
            state.spread(self.network, weights)
        else:
            self.network.load_state_dict(weights)

    @contextmanager
    def settings(self) -> Iterator[None]:
        """Inside the block PyTorch computes as the trial asks: TF32, deterministic algorithms."""
        with self.precision.matmuls(), determinism(self.options.deterministic):
            yield

    @contextmanager
    def _together(self) -> Iterator[Watch | None]:
        """Inside the block the ranks work on this trial together, if there are several."""
        if self.options.strategy == "alone" or not together():
            yield None
            return
        self.ranks = Ranks.here(self.device)
        with Watch(self.ranks) as watch:
            if self._strategy is None:
                self._strategy = share_out(self, self.optimizer_like, self.ranks)
            yield watch


def _refuse_no_module(network: object) -> None:
    if isinstance(network, nn.Module):
        return
    if isinstance(network, type) and issubclass(network, nn.Module):
        name = network.__name__
        raise UsageError(f"expected a network as an object, got the class {name}: write {name}(…).")
    raise UsageError(f"expected a network that is an nn.Module, got {type(network).__name__}.")


def _home(network: nn.Module) -> torch.device:
    """Where the network is already."""
    first = next(network.parameters(), None)
    return torch.device("cpu") if first is None else first.device
