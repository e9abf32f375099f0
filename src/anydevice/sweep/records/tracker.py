"""Tracks one run: sums figures on the device batch by batch, and records every epoch.

with sweep.track(run, "runs/first") as t:
    for epoch in range(5):
        for x, y in batches:
            ...
            t.batch(loss=loss, accuracy=right.float().mean(), size=len(y))
        t.epoch()
"""

import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from anydevice import system
from anydevice.devices import host
from anydevice.errors import UsageError
from anydevice.sweep import jsonable
from anydevice.sweep.grid import Run
from anydevice.sweep.records.claims import Claim, claim
from anydevice.sweep.records.records import Damaged, Record, read, write
from anydevice.train.callbacks.callback import Callback
from anydevice.virtual import enabled

if TYPE_CHECKING:
    from anydevice.train.trial import Trial

SELDOM = 20  # of short epochs, so few are written that it takes a twentieth of the time


class StoppedEarly(BaseException):
    """The run is not good enough to continue; no Exception, so that experiments let it pass."""


class Tracker(Callback):
    """One run's record, from the start of a `with` block to its end; also a Trial's callback."""

    def __init__(
        self,
        run: Run,
        folder: Path,
        about: Mapping[str, Any],
        judge: Callable[[dict[str, Any]], bool] | None = None,
        gpus: tuple[int, ...] = (),
        own_process: bool = False,
        held: Claim | None = None,
    ) -> None:
        self.run, self.folder = run, folder
        self._judge, self._gpus, self._own_process = judge, gpus, own_process
        self._claim = held
        self._record = Record(run.key, run.parameters, seed=run.seed, **about)
        self._sums: dict[str, Tensor] = {}
        self._numbers: dict[str, float] = {}
        self._sizes: dict[str, int] = {}
        self._device: torch.device | None = None
        self._written = self._writing = 0.0

    # ---- what a loop calls ----

    def batch(self, *, size: int = 1, **figures: Any) -> None:
        """Adds a batch's means; `size` is how many samples it had. Does not wait for the device."""
        for name, value in figures.items():
            if isinstance(value, Tensor):
                total = self._sums.get(name)
                if total is None:
                    self._sums[name] = self._first(name, value).mul(size)
                else:
                    total.add_(value.detach(), alpha=size)
            else:
                self._numbers[name] = self._numbers.get(name, 0.0) + value * size
            self._sizes[name] = self._sizes.get(name, 0) + size

    def epoch(self, **figures: Any) -> None:
        """Ends an epoch: its figures are the means over its batches, and those given here."""
        means = {name: total / self._sizes[name] for name, total in self._sums.items()}
        for name, number in self._numbers.items():
            means[name] = number / self._sizes[name]  # type: ignore[assignment]
        self._sums, self._numbers, self._sizes = {}, {}, {}
        self._end_epoch([*self._record.epochs, self._made({**means, **figures})])

    # ---- from its start to its end ----

    def __enter__(self) -> Self:
        if self._own_process:
            return self  # it began before the experiment, and ends after it
        self._claim = claim(self.folder, self.run.key)
        if self._claim is None:
            raise UsageError(
                f"expected a run that no process has, got one under way: ({self.run})."
            )
        there = read(self.folder, self.run.key)
        if isinstance(there, Damaged) or (there and there.finished):
            self._claim.release()
            state = there if isinstance(there, Damaged) else f"a record that is {there.state}"
            raise UsageError(f"expected a run that is not done, got ({self.run}): {state}")
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> bool:
        if self._own_process:
            return False
        try:
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                return False  # interrupted: not done, and not failed
            self.end(error)
        finally:
            if self._claim:
                self._claim.release()
        return isinstance(error, StoppedEarly)

    def start(self) -> None:
        """Begins the record, with nothing in it yet."""
        if self._on_gpu():
            torch.cuda.reset_peak_memory_stats()
        self.begin()
        self._keep(started=datetime.now(UTC).isoformat(timespec="seconds"))

    def begin(self) -> None:
        """Starts the clocks."""
        self._begin = self._epoch_begin = perf_counter()

    def end(self, error: BaseException | None = None) -> None:
        """Ends the record: done, failed with this error, or stopped."""
        state, text = "done", None
        if isinstance(error, StoppedEarly):
            state = "stopped"
        elif error is not None:
            state, text = "failed", "".join(traceback.format_exception(error))
        self._keep(state=state, error=text, **self._ran_on(), peak_bytes=self.peak_bytes())

    @property
    def record(self) -> Record:
        """The record so far."""
        return self._record

    # ---- what an experiment returns ----

    def take(self, result: Any) -> None:
        """Takes in what an experiment returned: a history, a dictionary, or nothing."""
        there = self._record.epochs
        if isinstance(result, Mapping) and there:
            epochs = [*there[:-1], {**there[-1], **self._plain(result, len(there))}]
        elif isinstance(result, Mapping):
            epochs = [self._made(result)]
        elif isinstance(result, (list, tuple)) and all(isinstance(r, Mapping) for r in result):
            epochs = [self._plain(record, number) for number, record in enumerate(result, 1)]
        elif result is None and there:
            return
        else:
            raise UsageError(
                "expected an experiment that returns a history or a dictionary of figures, or "
                f"yields records, got one that returned {type(result).__name__}."
            )
        self._record = replace(self._record, epochs=epochs)

    def on_end_epoch(self, trial: "Trial") -> None:
        """As a callback of a Trial: its history is the record's."""
        self._device = trial.device
        history = [self._plain(record, number) for number, record in enumerate(trial.history, 1)]
        if history == self._record.epochs:
            return  # called twice
        try:
            self._end_epoch(history)
        except StoppedEarly:
            trial.stop()
            self.stopped = True

    stopped = False

    # ---- what a subclass may do in another way ----

    def store(self, record: Record, *, epoch: bool) -> None:
        """Writes the record; of many short epochs, only so many that it takes little time."""
        now = perf_counter()
        if not epoch or now - self._written > SELDOM * self._writing:
            write(self.folder, record)
            self._written = perf_counter()
            self._writing = self._written - now

    def peak_bytes(self) -> int | None:
        """The most memory that the run has taken, where that is known."""
        device = self._ran_device()
        if device.type == "cuda":
            return torch.cuda.max_memory_allocated(device)
        if not self._own_process:
            return None  # a process has one peak for all its runs
        return system.peak_memory()

    # ---- how ----

    def _first(self, name: str, value: Tensor) -> Tensor:
        """The start of a sum, in a precision that can hold it."""
        if value.numel() != 1:
            raise UsageError(f"expected one number for {name}, got a tensor of {value.numel()}.")
        self._seen(value)
        return value.detach().to(torch.promote_types(value.dtype, torch.float32), copy=True)

    def _seen(self, value: Tensor) -> None:
        if self._device is None or self._device.type == "cpu":
            self._device = value.device

    def _made(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """A record of an epoch that ends now, as plain numbers; timed once they have arrived."""
        plain = self._plain(figures, len(self._record.epochs) + 1)
        now = perf_counter()
        plain.setdefault("seconds", now - self._epoch_begin)
        self._epoch_begin = now
        return plain

    def _plain(self, figures: Mapping[str, Any], epoch: int) -> dict[str, Any]:
        """One transfer for all the numbers that are on the device."""
        waiting = {k: v for k, v in figures.items() if isinstance(v, Tensor) and v.numel() == 1}
        for value in waiting.values():
            self._seen(value)
        read = dict(zip(waiting, _numbers(list(waiting.values())), strict=True))
        plain = {name: jsonable.figure(name, value) for name, value in {**figures, **read}.items()}
        return {"epoch": epoch, **plain}

    def _end_epoch(self, epochs: list[dict[str, Any]]) -> None:
        self._keep(epochs=epochs, **({} if self._record.device else self._ran_on()))
        if self._judge and not self._judge(epochs[-1]):
            raise StoppedEarly

    def _keep(self, **changes: Any) -> None:
        now = perf_counter()
        self._record = replace(self._record, **{"seconds": now - self._begin, **changes})
        self.store(self._record, epoch="epochs" in changes)

    def _ran_on(self) -> dict[str, Any]:
        device = self._ran_device()
        if device.type != "cuda":
            return {"device": str(device), "device_name": host.cpu().name, "virtual": False}
        index = device.index if device.index is not None else torch.cuda.current_device()
        shown = self._gpus[index] if index < len(self._gpus) else index
        return {
            "device": f"cuda:{shown}",
            "device_name": torch.cuda.get_device_name(index),
            "virtual": enabled() is not None,
        }

    def _ran_device(self) -> torch.device:
        """The device of its tensors or of its parameters; else the GPU, where it has used one."""
        asked = str(self.run.parameters.get("device", ""))
        seen = self._device or torch.device("cpu")
        if seen.type != "cpu" or not (asked.startswith(("cuda", "gpu")) or not asked):
            return seen
        return torch.device("cuda") if self._on_gpu() else seen

    def _on_gpu(self) -> bool:
        return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _numbers(tensors: list[Tensor]) -> list[float]:
    """Their values, in one transfer from each device."""
    values: dict[int, float] = {}
    for device in {tensor.device for tensor in tensors}:
        there = [place for place, tensor in enumerate(tensors) if tensor.device == device]
        widest = torch.float32
        for place in there:
            widest = torch.promote_types(widest, tensors[place].dtype)
        flat = [tensors[place].detach().reshape(()).to(widest) for place in there]
        values.update(zip(there, torch.stack(flat).tolist(), strict=True))
    return [values[place] for place in range(len(tensors))]
