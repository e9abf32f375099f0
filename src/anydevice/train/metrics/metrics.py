"""What is measured while training: summed on the device, read once when asked for."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anydevice.devices.move import move
from anydevice.errors import UsageError, did_you_mean
from anydevice.train.loop.forward import Result
from anydevice.train.metrics.classes import Auc, Confusion, PerClass, Roc
from anydevice.train.metrics.measure import Measure as Measure

if TYPE_CHECKING:
    from anydevice.train.ranks import Ranks


class Loss(Measure):
    """The mean loss over samples: a smaller last batch counts for less."""

    kept = ("total", "samples")
    adds_up = True

    def reset(self, device: torch.device) -> None:  # noqa: D102
        self.total = torch.zeros((), device=device)
        self.samples = 0

    def update(self, result: Result) -> None:  # noqa: D102
        self.add(result.loss, result.size)

    def add(self, figure: Tensor, samples: int) -> None:
        """Take in a batch's mean."""
        self.total.add_(figure, alpha=samples)
        self.samples += samples

    def value(self) -> Tensor:  # noqa: D102
        return self.total / self.samples


class Average(Loss):
    """The mean over samples of what a function makes of outputs and targets."""

    def __init__(self, of: Callable[[Any, Any], Tensor]) -> None:
        self.of = of

    def update(self, result: Result) -> None:  # noqa: D102
        self.add(self.of(result.output, result.target), result.size)


class Share(Measure):
    """The share of predictions that a function marks as right."""

    kept = ("count", "predictions")
    adds_up = True

    def __init__(self, right: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.right = right

    def reset(self, device: torch.device) -> None:  # noqa: D102
        self.count = torch.zeros((), dtype=torch.int64, device=device)
        self.predictions = 0

    def update(self, result: Result) -> None:  # noqa: D102
        right = self.right(result.output, result.target)
        self.count.add_(right.sum())
        self.predictions += right.numel()

    def value(self) -> Tensor:  # noqa: D102
        return self.count / self.predictions


class Foreign(Measure):
    """A torchmetrics Metric, or any object with its `update`, `compute` and `reset`."""

    def __init__(self, metric: Any) -> None:
        self.metric = metric

    def reset(self, device: torch.device) -> None:  # noqa: D102
        if hasattr(self.metric, "to"):
            self.metric.to(device)
        self.metric.reset()

    def update(self, result: Result) -> None:  # noqa: D102
        self.metric.update(result.output, result.target)

    def value(self) -> Any:  # noqa: D102
        return self.metric.compute()

    @property
    def is_gathered(self) -> bool:
        """Whether it gathers by itself what other ranks have measured, as torchmetrics do."""
        return all(hasattr(part, "dist_sync_fn") for part in self._parts().values())

    def state(self) -> dict[str, Any]:  # noqa: D102
        return {name: _attributes(part) for name, part in self._parts().items()}

    def set_state(self, state: dict[str, Any], device: torch.device) -> None:  # noqa: D102
        self.reset(device)
        for name, part in self._parts().items():
            vars(part).update(move(state[name], device))

    def _parts(self) -> dict[str, Any]:
        """A MetricCollection holds several by name."""
        return dict(self.metric.items()) if hasattr(self.metric, "items") else {"": self.metric}


class Metrics:
    """The metrics of a trial under their names: `Metrics(["loss", "accuracy"])`."""

    def __init__(self, wanted: Sequence[Any]) -> None:
        if not isinstance(wanted, (list, tuple)):
            got = repr(wanted) if isinstance(wanted, str) else f"a {type(wanted).__name__}"
            one = repr(wanted) if isinstance(wanted, str) else "…"
            raise UsageError(f"expected metrics as a list, got {got}: write metrics=[{one}].")
        self.measures: dict[str, Measure] = {}
        for name, measure in map(_measure, wanted):
            if name in self.measures:
                raise UsageError(
                    f"expected metrics of different names, got {name!r} twice: give one another "
                    "name as a pair, such as ('mine', function)."
                )
            self.measures[name] = measure
        self._measures = list(self.measures.values())

    def reset(self, device: torch.device) -> None:
        """Forget what was measured."""
        for measure in self._measures:
            measure.reset(device)

    def update(self, results: list[Result]) -> None:
        """Take in the batches of a step, without waiting for the device."""
        recording = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)  # as torch.no_grad(), in a tenth of its time
        try:
            for measure in self._measures:
                for result in results:
                    if result.size:
                        measure.update(result)
                    else:
                        measure.skip()
        finally:
            torch._C._set_grad_enabled(recording)

    def state(self) -> dict[str, Any]:
        """What every metric measured so far."""
        return {name: measure.state() for name, measure in self.measures.items()}

    def set_state(self, state: dict[str, Any], device: torch.device) -> None:
        """Continue from there."""
        for name in state:
            self.measures[name].set_state(state[name], device)

    def read_over(self, ranks: "Ranks", device: torch.device, **others: Tensor) -> dict[str, float]:
        """As `read`, of what all ranks have measured together."""
        for name, measure in self.measures.items():
            if not (measure.adds_up or (isinstance(measure, Foreign) and measure.is_gathered)):
                raise UsageError(
                    f"expected metrics that several ranks can measure together, got {name!r}: name "
                    "one, give a function or a torchmetrics Metric, or train in one process."
                )
        own = {name: m.state() for name, m in self.measures.items() if m.adds_up}
        both = added(ranks.gather(move(own, "cpu")))
        values = {
            name: measure.value_of(both[name], device) if name in both else measure.value()
            for name, measure in self.measures.items()
        }
        return _numbers({**values, **others})

    def read(self, **others: Tensor) -> dict[str, float]:
        """The figures, and others, as numbers: all of them in one transfer from the device."""
        values = {name: measure.value() for name, measure in self.measures.items()}
        return _numbers({**values, **others})


def added(trees: Sequence[Any]) -> Any:
    """The sums of the numbers at the same places of several trees."""
    if isinstance(trees[0], dict):
        names = dict.fromkeys(name for tree in trees for name in tree)
        return {name: added([tree[name] for tree in trees if name in tree]) for name in names}
    if isinstance(trees[0], list):
        return [part for tree in trees for part in tree]
    return sum(part.double() if isinstance(part, Tensor) else part for part in trees)


def _attributes(metric: Any) -> dict[str, Any]:
    """What a torchmetrics Metric has summed up, under its attributes' names."""
    if not hasattr(metric, "_defaults"):
        raise UsageError(
            f"expected a torchmetrics Metric, whose state can be kept, got {type(metric).__name__}:"
            " checkpoint at the ends of epochs only, without every=."
        )
    return {name: getattr(metric, name) for name in (*metric._defaults, "_update_count")}


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Which predictions are right: classes along dimension 1, or one logit each for yes and no."""
    if not isinstance(output, Tensor) or not isinstance(target, Tensor):
        raise UsageError(
            "expected outputs and targets that are tensors, for accuracy, got outputs of "
            f"{type(output).__name__} and targets of {type(target).__name__}: let the network "
            "return a tensor or an object with .logits, and name the targets 'labels' in batches "
            "that are dictionaries."
        )
    if output.dim() == target.dim() + 1:
        if output.size(1) == 1:  # one logit for yes and no
            return (output.squeeze(1) > 0) == (target > 0.5)
        return output.argmax(1) == target
    if output.shape == target.shape:
        if not target.is_floating_point():
            return (output > 0) == target.bool()
        if output.dim() > 1 and output.size(1) > 1:  # soft labels
            return output.argmax(1) == target.argmax(1)
        return (output > 0) == (target > 0.5)
    raise UsageError(
        "expected outputs with one dimension more than the targets (the classes, at dimension 1), "
        f"got outputs of shape {list(output.shape)} and targets of shape {list(target.shape)}."
    )


def top5(output: Tensor, target: Tensor) -> Tensor:
    """Which targets are among the five classes with the largest outputs."""
    likeliest = output.topk(min(5, output.size(1)), 1).indices
    return (likeliest == target.unsqueeze(1)).any(1)


KNOWN: dict[str, Callable[[], Measure]] = {
    "loss": Loss,
    "accuracy": lambda: Share(accuracy),
    "acc": lambda: Share(accuracy),
    "top5": lambda: Share(top5),
    "confusion": Confusion,
    "per_class": PerClass,
    "roc": Roc,
    "auc": Auc,
    "mse": lambda: Average(torch.nn.functional.mse_loss),
    "mae": lambda: Average(torch.nn.functional.l1_loss),
}


def _measure(wanted: Any) -> tuple[str, Measure]:
    if isinstance(wanted, tuple) and len(wanted) == 2 and isinstance(wanted[0], str):
        return wanted[0], _measure(wanted[1])[1]
    if isinstance(wanted, Measure):
        return type(wanted).__name__.lower(), wanted
    if isinstance(wanted, str):
        if wanted in KNOWN:
            return wanted, KNOWN[wanted]()
        raise UsageError(
            f"expected the name of a metric, got {wanted!r}: {did_you_mean(wanted, KNOWN)}"
        )
    if all(hasattr(wanted, part) for part in ("update", "compute", "reset")):
        return type(wanted).__name__.lower(), Foreign(wanted)
    if callable(wanted):
        return getattr(wanted, "__name__", type(wanted).__name__), Average(wanted)
    raise UsageError(
        "expected a metric as a name, a function of outputs and targets, or a torchmetrics Metric, "
        f"got {wanted!r}."
    )


def _numbers(values: dict[str, Any]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name, value in values.items():
        figures |= value if isinstance(value, dict) else {name: value}
    flat = [torch.as_tensor(figure).detach().reshape(-1) for figure in figures.values()]
    if not flat:
        return {}
    device = next((part.device for part in flat if part.device.type != "cpu"), flat[0].device)
    numbers = torch.cat([part.to(device, torch.float32) for part in flat]).tolist()
    sizes = [part.numel() for part in flat]
    grouped = zip(figures.values(), _grouped(numbers, sizes), strict=True)
    return dict(zip(figures, (_shaped(*each) for each in grouped), strict=True))


def _grouped(numbers: list[float], sizes: list[int]) -> list[Any]:
    groups, start = [], 0
    for size in sizes:
        groups.append(numbers[start] if size == 1 else numbers[start : start + size])
        start += size
    return groups


def _shaped(figure: Any, numbers: Any) -> Any:
    """A matrix as rows; one of counts, of whole numbers."""
    if not isinstance(figure, Tensor) or figure.dim() < 2:
        return numbers
    rows = torch.tensor(numbers, dtype=torch.float64).reshape(figure.shape)
    return (rows if figure.is_floating_point() else rows.long()).tolist()
