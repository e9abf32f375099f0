"""Modules that bring their own training step, as Lightning's and d2l's do: taken as they are."""

import inspect
import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from anydevice.errors import UsageError
from anydevice.train.callbacks.schedule import Schedule
from anydevice.train.loop.forward import Result
from anydevice.train.metrics.metrics import Loss, Measure

LOGGING = ("log", "log_dict", "plot")


def recipe_of(module: nn.Module) -> dict[str, Any]:
    """The arguments of `Trial(module, …)`, from the module's own methods."""
    if not hasattr(module, "training_step") or not hasattr(module, "configure_optimizers"):
        raise UsageError(
            "expected a module with training_step and configure_optimizers, got "
            f"{type(module).__name__}: give Trial(network, optimizer, loss) instead."
        )
    optimizer, schedules = _optimizer_of(module.configure_optimizers())  # type: ignore[operator]
    step = Steps(module)
    metrics = ["loss", ("logged", step.logged)]
    return {"optimizer": optimizer, "step": step, "metrics": metrics, "callbacks": schedules}


class Steps:
    """`training_step` while training, `validation_step` while measuring."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.logged = Logged()
        training: Any = module.training_step
        self._training = _with_index(training)
        self._measuring = _with_index(getattr(module, "validation_step", training))

    def __call__(self, network: nn.Module, batch: Any) -> Any:
        """The loss of one batch; what the module logs on the way is averaged over the epoch."""
        method = self._training if network.training else self._measuring
        with self._heard(self.logged.next_batch()):
            made = method(batch, self.logged.batches - 1)
        loss = made["loss"] if isinstance(made, dict) else made
        if loss is None and not network.training:  # it only logs
            loss = torch.full((), math.nan)
        return loss

    @contextmanager
    def _heard(self, said: dict[str, Any]) -> Iterator[None]:
        """Catches what the module logs: its own methods need its framework's trainer."""

        def log(name: str, value: Any, *_: Any, **__: Any) -> None:
            validates = not self.module.training
            said[name.removeprefix("val_") if validates else name] = value

        def log_dict(values: dict[str, Any], *_: Any, **__: Any) -> None:
            for name, value in values.items():
                log(name, value)

        attributes = vars(self.module)
        before = {name: attributes[name] for name in LOGGING if name in attributes}
        attributes.update(log=log, log_dict=log_dict, plot=log)
        try:
            yield
        finally:
            for name in LOGGING:
                del attributes[name]
            attributes.update(before)


class Logged(Measure):
    """What a module logs: means over the samples, and metrics that compute themselves."""

    adds_up = True

    def __init__(self) -> None:
        self.means: dict[str, Loss] = {}
        self.metrics: dict[str, Any] = {}
        self.batches = 0  # of this pass over the data
        self._said: deque[dict[str, Any]] = deque()  # for batches whose size is not known yet

    def next_batch(self) -> dict[str, Any]:
        """Where to put what is logged during the next batch."""
        self.batches += 1
        self._said.append({})
        return self._said[-1]

    def reset(self, device: torch.device) -> None:  # noqa: D102
        self.batches = 0
        self._said.clear()
        self.means.clear()
        self._device = device
        for metric in self.metrics.values():
            metric.reset()
        self.metrics.clear()

    def update(self, result: Result) -> None:  # noqa: D102
        for name, value in self._said.popleft().items():
            if hasattr(value, "compute"):
                self.metrics[name] = value
                continue
            if name not in self.means:
                self.means[name] = Loss()
                self.means[name].reset(self._device)
            figure = torch.as_tensor(value, dtype=torch.float32).detach()
            self.means[name].add(figure.to(self._device, non_blocking=True), result.size)

    def skip(self) -> None:  # noqa: D102
        self._said.popleft()

    def value(self) -> dict[str, Any]:  # noqa: D102
        computed = {name: metric.compute() for name, metric in self.metrics.items()}
        return {name: mean.value() for name, mean in self.means.items()} | computed

    def value_of(self, state: dict[str, Any], device: torch.device) -> Any:  # noqa: D102
        means = {name: Loss().value_of(kept, device) for name, kept in state["means"].items()}
        return means | {name: metric.compute() for name, metric in self.metrics.items()}

    def state(self) -> dict[str, Any]:  # noqa: D102
        means = {name: mean.state() for name, mean in self.means.items()}
        return {"batches": self.batches, "means": means}

    def set_state(self, state: dict[str, Any], device: torch.device) -> None:  # noqa: D102
        self.reset(device)
        self.batches = state["batches"]
        for name, kept in state["means"].items():
            self.means[name] = Loss()
            self.means[name].set_state(kept, device)


def _optimizer_of(configured: Any) -> tuple[Optimizer, list[Schedule]]:
    """Optimizer and schedules, from any of the shapes that configure_optimizers() returns."""
    schedules: Any = []
    if isinstance(configured, dict):
        schedules = configured.get("lr_scheduler", [])
        configured = configured["optimizer"]
    elif isinstance(configured, tuple) and not any(isinstance(p, Optimizer) for p in configured):
        configured, schedules = configured
    several = configured if isinstance(configured, (list, tuple)) else [configured]
    if len(several) != 1 or not isinstance(several[0], Optimizer):
        raise UsageError(
            f"expected configure_optimizers to give one optimizer, got {configured!r}: train a "
            "module with several with your own loop."
        )
    schedules = schedules if isinstance(schedules, (list, tuple)) else [schedules]
    return several[0], [_schedule(given) for given in schedules]


def _schedule(given: Any) -> Schedule:
    how = given if isinstance(given, dict) else {"scheduler": given}
    each, watch = how.get("interval", "epoch"), how.get("monitor", "val_loss")
    return Schedule(lambda optimizer: how["scheduler"], each, watch)


def _with_index(method: Callable[..., Any]) -> Callable[[Any, int], Any]:
    """Lightning's steps take the batch and its index, d2l's the batch."""
    takes_two = len(inspect.signature(method).parameters) > 1
    return method if takes_two else lambda batch, index: method(batch)
