"""Learning rates that change while training, by any of PyTorch's schedulers."""

import math
from collections.abc import Callable, Sequence, Sized
from typing import TYPE_CHECKING, Any, cast

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CyclicLR, LambdaLR, OneCycleLR, ReduceLROnPlateau

from anydevice.errors import UsageError, did_you_mean
from anydevice.train.callbacks.callback import SCHEDULERS, Callback

if TYPE_CHECKING:
    from anydevice.train.trial import Trial

NAMES = ("cosine", "linear", "constant")


class Course:
    """The factor of the learning rates at each step of a run: a warm-up, then down to 0."""

    def __init__(self, name: str, warmup: float) -> None:
        self.name, self.warmup = name, warmup
        self.total = 0  # steps

    def __call__(self, step: int) -> float:
        """How much of its rate the optimizer has at this step."""
        first = self.warmup if isinstance(self.warmup, int) else round(self.warmup * self.total)
        if step < first:
            return (step + 1) / (first + 1)
        done = min((step - first) / max(self.total - first, 1), 1.0)
        return {"cosine": (1 + math.cos(math.pi * done)) / 2, "linear": 1 - done}.get(
            self.name, 1.0
        )


class Schedule(Callback):
    """Changes learning rates by name, or by a scheduler of PyTorch.

    Args:
        make: `"cosine"` or `"linear"`, from the optimizer's rates down to 0 at the end of the run;
            `"constant"`; or a function of the optimizer that returns a scheduler.
        each: `"epoch"` or `"step"`; by name it is each step.
        watch: The figure that ReduceLROnPlateau gets.
        warmup: By name, the steps in which the rates rise from near 0 at first, or their share of
            the run such as 0.05.

    Raises:
        UsageError: If the name or `each` is not known, the warm-up is negative or that of a
            function, or, in the run by name, the data has no length.

    Example:
        >>> named = Schedule("cosine", warmup=0.05)
        >>> cosine = Schedule(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=10))
    """

    def __init__(
        self,
        make: str | Callable[[Optimizer], Any],
        each: str = "epoch",
        watch: str = "val_loss",
        warmup: float = 0,
    ) -> None:
        if each not in ("epoch", "step"):
            raise UsageError(f"expected a schedule each 'epoch' or each 'step', got {each!r}.")
        self.course: Course | None = None
        if isinstance(make, str):
            self.course, each = _course(make, warmup), "step"
        elif warmup:
            raise UsageError(
                "expected a warmup for a schedule by name, such as 'cosine', got one for a "
                "function: let it return a SequentialLR."
            )
        self.make, self.each, self.watch = make, each, watch
        self.scheduler: Any = None
        self._state: dict[str, Any] | None = None

    def on_start(self, trial: "Trial") -> None:  # noqa: D102
        if self.course:
            self.course.total = trial.epochs * _steps_of_an_epoch(trial)
        if self.scheduler is not None:
            return
        groups = trial.optimizer.param_groups
        before = [{k: v for k, v in group.items() if k != "params"} for group in groups]
        self.scheduler = self._made(trial.optimizer)
        if self._state:  # making it has set the first rates; the checkpoint's are these
            self.scheduler.load_state_dict(self._state)
            for group, values in zip(groups, before, strict=True):
                group.update(values)
            if self.course:  # the run may be longer than that of the checkpoint
                self.course.total = trial.epochs * _steps_of_an_epoch(trial)

    def _made(self, optimizer: Optimizer) -> Any:
        return LambdaLR(optimizer, self.course) if self.course else cast(Any, self.make)(optimizer)

    def on_step(self, trial: "Trial") -> None:  # noqa: D102
        if self.each == "step":
            self.scheduler.step()

    def on_end_epoch(self, trial: "Trial") -> None:  # noqa: D102
        if self.each == "step":
            return
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(trial.history[-1][self.watch])
        else:
            self.scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return self.scheduler.state_dict() if self.scheduler else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from there when the run starts."""
        self._state = state


def _course(name: str, warmup: float) -> Course:
    if name not in NAMES:
        raise UsageError(f"expected a schedule by name, got {name!r}: {did_you_mean(name, NAMES)}")
    number = isinstance(warmup, (int, float)) and not isinstance(warmup, bool)
    if not number or warmup < 0 or (isinstance(warmup, float) and warmup >= 1):
        raise UsageError(
            f"expected a warmup of so many steps, or of a share of the run below 1, got {warmup!r}."
        )
    return Course(name, warmup)


def _steps_of_an_epoch(trial: "Trial") -> int:
    try:
        batches = len(cast(Sized, trial.sets.named("train")))
    except TypeError as error:
        raise UsageError(
            "expected training data with a length for a schedule by name, got "
            f"{type(trial.train_data).__name__} without one: give Schedule a function, such as "
            "lambda optimizer: CosineAnnealingLR(optimizer, steps), and each='step'."
        ) from error
    return -(-batches // trial.options.accumulate)


def scheduled(callbacks: Sequence[Any], optimizer: object) -> list[Any]:
    """The callbacks, with a `Schedule` for each of PyTorch's schedulers.

    A scheduler has to be made of the trial's own optimizer: of another it would change nothing.
    """
    return [
        _schedule_of(each, optimizer) if isinstance(each, SCHEDULERS) else each
        for each in callbacks
    ]


def _schedule_of(scheduler: Any, optimizer: object) -> Schedule:
    if scheduler.optimizer is not optimizer:
        name = type(scheduler).__name__
        raise UsageError(
            f"expected a scheduler of the trial's own optimizer, got {name} of another one: write "
            f"Schedule(lambda optimizer: {name}(optimizer, …)), or give the trial that optimizer."
        )
    each = "step" if isinstance(scheduler, (OneCycleLR, CyclicLR)) else "epoch"
    return Schedule(lambda _: scheduler, each=each)


def with_schedule(callbacks: Sequence[Any], name: str | None, warmup: float) -> list[Any]:
    """The callbacks, with this schedule instead of one that was set so before."""
    others = [each for each in callbacks if not isinstance(each, _ByOption)]
    if name is None and not warmup:
        return others
    if any(isinstance(each, Schedule) for each in others):
        raise UsageError(
            "expected one schedule of the learning rates, got schedule= or warmup= and a Schedule "
            "among the callbacks: leave one out."
        )
    return [*others, _ByOption("constant" if name is None else name, warmup=warmup)]


class _ByOption(Schedule):
    """The schedule that `with_options` names."""
