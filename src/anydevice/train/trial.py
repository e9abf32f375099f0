"""One training run: a network, an optimizer, a loss, and data, on any device."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from contextvars import ContextVar
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import torch
from torch import nn

from anydevice.devices.choose import DeviceLike, pick
from anydevice.devices.move import move
from anydevice.errors import UsageError
from anydevice.train.callbacks import Progress
from anydevice.train.callbacks.callback import everywhere, listeners, reactions
from anydevice.train.checkpoint.checkpoints import (
    Checkpoints,
    malformed,
    read,
    take_up,
    whole_network,
)
from anydevice.train.checkpoint.resume import NAMED, of_all_ranks, of_this_rank
from anydevice.train.data.random_state import random_state
from anydevice.train.export import export
from anydevice.train.history import History
from anydevice.train.inference import answer, joined
from anydevice.train.loop import Hook, Job, as_it_was, evaluate, train_epoch
from anydevice.train.prepared import Prepared

# What a thread's trials do in the place of their loop; set by a sweep that trains several as one.
instead: ContextVar[Callable[["Trial", int], History] | None] = ContextVar("instead", default=None)


class Trial(Prepared):
    """A training run.

    >>> trial = Trial(network, "adam", "cross_entropy", metrics=["loss", "accuracy"]).to("auto")
    >>> history = trial.with_generators(train, val).run(epochs=10)
    """

    def run(self, epochs: int, verbose: bool = True) -> History:
        """Trains until the history has so many epochs; a second call goes on from there."""
        if in_its_place := instead.get():
            return in_its_place(self, epochs)
        job = self.job
        with ExitStack() as stack:
            watch = stack.enter_context(self._together())
            stack.enter_context(self._settings())
            self._with_optimizer(job)
            react = self._reactions(job, verbose)
            self.stopped, job.batches = False, 0  # an epoch that was broken off is begun anew
            if self._keeper:
                stack.enter_context(self._keeper.listening(watch))
                self._keeper.go_on(self)
            react["on_start"]()
            try:
                while self.epoch < epochs and not self.stopped:
                    react["on_start_epoch"]()
                    self.history.append(self._epoch(job))
                    react["on_end_epoch"]()
                    self.stopped = self._any(self.stopped)
            except Exception as error:
                if watch:
                    watch.failed(error)
                raise
            finally:
                react["on_end"]()
        return self.history

    def evaluate(self, data: Any = None, *, batch_size: int = 1000) -> dict[str, float]:
        """The metrics over `data`, or over the validation (else test) data of the trial."""
        with self._together(), self._settings():
            if data is not None:
                batches = self.sets.shared(data, batch_size)
            else:
                batches = self.sets.named("val" if "val" in self.sets.given else "test")
            return self._measured(self.job, batches)

    def predict(self, data: Any, *, batch_size: int = 1000) -> Any:
        """The network's outputs for all of `data`, on the CPU."""
        return joined(list(self.predictions(data, batch_size=batch_size)))

    def predictions(self, data: Any, *, batch_size: int = 1000) -> Iterator[Any]:
        """The outputs batch by batch, for data that does not end or whose outputs do not fit."""
        self._initialise_lazy()
        for batch in self.sets.over(data, batch_size):
            still = torch.no_grad() if self.is_sharded else torch.inference_mode()
            with as_it_was(self.network), still, self.precision.autocast:
                output = answer(self.network.eval(), batch)
            yield move(output, "cpu")

    def export(self, path: str | Path, example: Any = None, device: DeviceLike = "cpu") -> Path:
        """Writes the network for use without anydevice: `torch.export.load(path).module()(x)`.

        `example` is a batch of inputs; without one, the first training batch is.
        """
        if self.is_sharded:
            raise UsageError(
                'expected a whole network to export, got one in shares, by strategy="fsdp": save '
                "it, and load and export it in one process."
            )
        if example is None:
            batch = self._first_batch()
            example = tuple(batch[:-1]) if isinstance(batch, (tuple, list)) else batch
        return export(self.network, example, Path(path), pick(device))

    def save(self, folder: str | Path) -> Path | None:
        """Keeps the trial in a folder, from which `Trial.load` makes it again."""
        with self._together():
            state = of_all_ranks(self.state(), {}, self.ranks)
            path = self.write_to(Checkpoints(Path(folder), keep=1), state)
            return self.ranks.told(path) if self.ranks else path

    @classmethod
    def load(cls, folder: str | Path, network: nn.Module, *arguments: Any, **options: Any) -> Self:
        """The trial kept there, around this network, with what `Trial(network, …)` takes.

        Names of optimizer, loss and metrics are kept; what had no name is given again.
        """
        path = Checkpoints(Path(folder)).intact()
        if path is None:
            raise UsageError(f"expected a trial saved in {folder}, got nothing of the kind there.")
        with malformed(path):
            state = of_this_rank(read(path, network))
        names = dict(zip(NAMED, arguments, strict=False)) | options
        trial = cls(network, **{**state["names"], **names})
        with malformed(path):
            trial.set_state(state)
        return trial

    def state(self) -> dict[str, Any]:
        """Everything that goes on from here depends on, but for the network."""
        job = self.job
        whole = not self.is_sharded
        return {
            "names": self._names,
            "random": random_state(self.device, self.train_data),
            "history": list(self.history),
            "step": job.step,
            "batches": job.batches,
            "stopped": self.stopped,
            "parts": self._fitting.parts,
            "seed": self.sets.seed,
            "optimizer": job.optimizer.state_dict() if whole and job.optimizer else None,
            "groups": None if whole else self._shards().groups(),
            "loss": self.loss.state_dict() if whole and isinstance(self.loss, nn.Module) else None,
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
        if "shards" in state:
            if self._wanted_optimizer is not None:
                self._with_optimizer(job)
            self._shards().read(state["shards"], state["groups"])
        if state["loss"] and isinstance(self.loss, nn.Module):
            self.loss.load_state_dict(state["loss"])
        if state["scaler"] and job.scaler:
            job.scaler.load_state_dict(state["scaler"])
        job.skipped = state["skipped"]
        if state["metrics"] is not None:
            self.metrics.reset(self.device)
            self.metrics.set_state(state["metrics"], self.device)
        for callback, kept in zip(self._with_state(), state["callbacks"], strict=False):
            callback.load_state_dict(kept)

    def write_to(self, checkpoints: Checkpoints, state: dict[str, Any]) -> Path | None:
        """Adds a checkpoint: the first rank writes it, and where there are shards each its own."""
        ranks = self.ranks
        if ranks is None or (ranks.first and not self.is_sharded):
            return checkpoints.add(state, whole_network(self.network))
        if not self.is_sharded:
            return None
        ranks.same_buffers(self.network)
        shards = self._shards()
        if ranks.first:
            return checkpoints.add(state, lambda folder: shards.write(ranks.told(folder)))
        shards.write(ranks.told())
        return None

    def stop(self) -> None:
        """Ends the run after this epoch."""
        self.stopped = True

    def _reactions(self, job: Job, verbose: bool) -> dict[str, Hook]:
        """What happens at each moment; what shows and writes does so on the first rank alone."""
        keeper = [self._keeper] if self._keeper else []
        callbacks = [*self.callbacks, *everywhere, *([Progress()] if verbose else []), *keeper]
        if self.ranks and not self.ranks.first:
            callbacks = [c for c in callbacks if getattr(c, "on_every_rank", True)]
        react = reactions(callbacks, self)
        job.after_step = [react["on_step"]] if listeners(callbacks, "on_step") else []
        if self.ranks:
            job.after_step.insert(0, self._uncover)
        return react

    def _uncover(self) -> None:
        """Callbacks see the batch itself, not that it is a part."""
        job = self.job
        job.batch = job.batch.batch

    def _any(self, mine: bool) -> bool:
        return self.ranks.any(mine) if self.ranks else mine

    def _figures(self) -> dict[str, float]:
        if self.ranks:
            return self.metrics.read_over(self.ranks, self.device)
        return self.metrics.read()

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
        record = {"epoch": self.epoch + 1, **self._figures()}
        if job.scaler:
            record["skipped"], job.skipped = int(job.skipped), 0
        if "val" in self.sets.given:
            figures = self._measured(job, self.sets.named("val"))
            record |= {f"val_{name}": figure for name, figure in figures.items()}
        record["seconds"] = perf_counter() - begin
        return self.ranks.told(record) if self.ranks else record

    def _measured(self, job: Job, batches: Iterable[Any]) -> dict[str, float]:
        training = self.metrics.state() if job.batches else None  # asked in the middle of an epoch
        self.metrics.reset(self.device)
        if self.ranks:
            self.ranks.same_buffers(self.network)
        with as_it_was(self.network):
            measured = evaluate(job, batches)
        if not measured:
            raise UsageError("expected batches to measure with, got none: is the data empty?")
        figures = self._figures()
        if training:
            self.metrics.set_state(training, self.device)
        return figures
