"""Whether trials can be trained as one, and whether that is faster; if not, the reason."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from time import perf_counter
from typing import Any

import torch
from torch import nn

from anydevice.sweep.fuse.optimizers import KINDS, VARYING
from anydevice.sweep.fuse.training import Together, batches, named_tensors, resident
from anydevice.train.callbacks.callback import listeners
from anydevice.train.callbacks.schedule import Schedule
from anydevice.train.metrics.metrics import Average, Loss, Share
from anydevice.train.options import Options
from anydevice.train.trial import Trial

METRICS = (Loss, Share, Average)
TURNS = 10


def why_not(trials: Sequence[Trial]) -> str | None:
    """Why these trials have to be trained one by one; None where they do not."""
    for trial in trials:
        if reason := _odd(trial):
            return reason
    first = trials[0]
    for trial in trials[1:]:
        if reason := _differs(first, trial):
            return reason
    return None


def times_as_fast(together: Together, workers: int) -> float:
    """How much faster a step of all trials as one is than their steps in turn, measured.

    It leaves the trials unchanged. It raises only what vmap cannot do.
    """
    trial = together.trials[0]
    batch, dims = next(batches(together.trials, "train"))
    kept = [tensor.clone() for tensor in (*together.weights, *together.others.values())]
    trial.network.train()
    alone = _step_alone(trial)
    readings = []
    try:
        for _ in range(TURNS):  # in turns, and the best of each: others use the machine as well
            as_one = _seconds(lambda: together.step(batch, dims), trial.device)
            readings.append((_seconds(alone, trial.device), as_one))
    finally:
        there = (*together.weights, *together.others.values())
        for tensor, before in zip(there, kept, strict=True):
            tensor.copy_(before)
        together.begin_anew()
    one, all_of_them = (min(column) for column in zip(*readings, strict=True))
    return float(one * len(together.trials) / (workers * all_of_them))


def _step_alone(trial: Trial) -> Callable[[], object]:
    """A training step of one trial, on a copy of its network."""
    network, own = deepcopy(trial.network), trial.optimizer
    group = {name: own.param_groups[0][name] for name in own.defaults}
    optimizer = type(own)(network.parameters(), **group)
    batch = next(iter(trial.sets.named("train")))

    def step() -> None:
        optimizer.zero_grad()
        result = trial.job.forward(network, batch)
        result.loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _seconds(step: Callable[[], object], device: torch.device) -> float:
    begin = perf_counter()
    step()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return perf_counter() - begin


def _odd(trial: Trial) -> str | None:
    """What one trial has that trials trained as one cannot have."""
    optimizer, options = trial.optimizer, trial.options
    plain = Options(clip_norm=options.clip_norm, seed=options.seed, on_oom=options.on_oom)
    group = optimizer.param_groups[0]
    trained = [p for p in trial.network.parameters() if p.requires_grad]
    sets = [trial.sets.named(name) for name in trial.sets.given if name != "test"]
    reasons: list[tuple[Any, str]] = [
        (type(optimizer) not in KINDS, f"its optimizer is {type(optimizer).__name__}"),
        (len(optimizer.param_groups) > 1, "its optimizer has several groups of parameters"),
        ({*map(id, group["params"])} != {*map(id, trained)}, "its optimizer leaves weights out"),
        (group.get("amsgrad") or group.get("maximize"), "of its optimizer's amsgrad or maximize"),
        (group.get("dampening"), "of its optimizer's dampening"),
        (optimizer.state or trial.history, "it has been trained already"),
        (trial.keeper, "it writes checkpoints"),
        (options != plain, f"of its options: {options}"),
        (trial.precision.name not in ("fp32", "tf32"), f"it trains in {trial.precision.name}"),
        (trial.recipe.has_own_steps, "its module has its own training_step"),
        (isinstance(trial.loss, nn.Module) and [*trial.loss.parameters()], "its loss has weights"),
        (_at_each_step(trial), "one of its callbacks looks at each step"),
        (not all(map(resident, sets)), "its data is not tensors that stay on the device"),
        (
            [m for m in trial.metrics.measures.values() if type(m) not in METRICS],
            "a metric keeps its own state",
        ),
    ]
    return next((reason for true, reason in reasons if true), None)


def _at_each_step(trial: Trial) -> list[Any]:
    callbacks = listeners(trial.callbacks, "on_step")
    return [c for c in callbacks if not (isinstance(c, Schedule) and c.each == "epoch")]


def _differs(first: Trial, other: Trial) -> str | None:
    """What differs between two trials, and must not."""
    for what, look in LOOKS.items():
        if look(first) != look(other):
            return f"{what} differ"
    return None


def _tensors(trial: Trial) -> Any:
    tensors = named_tensors(trial.network).items()
    return [(name, t.shape, t.dtype, t.device, t.requires_grad) for name, t in tensors]


def _settings(trial: Trial) -> Any:
    group = trial.optimizer.param_groups[0]
    same = {name: group[name] for name in trial.optimizer.defaults if name not in VARYING}
    return type(trial.optimizer), same


def _data(trial: Trial) -> Any:
    found = {name: resident(trial.sets.named(name)) for name in trial.sets.given if name != "test"}
    return {
        name: (each.batch_size, [t.shape for t in each.tensors])
        for name, each in found.items()
        if each
    }


LOOKS: dict[str, Callable[[Trial], Any]] = {
    "their networks": lambda trial: str(trial.network),
    "their networks' tensors": _tensors,
    "their optimizers": _settings,
    "their losses": lambda trial: str(getattr(trial.loss, "__qualname__", trial.loss)),
    "their metrics": lambda trial: list(trial.metrics.measures),
    "their options": lambda trial: trial.options.clip_norm,
    "their precisions": lambda trial: trial.precision,
    "the shapes of their data": _data,
}
