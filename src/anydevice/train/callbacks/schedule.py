"""Learning rates that change while training, by any of PyTorch's schedulers."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR, ReduceLROnPlateau

from anydevice.errors import UsageError
from anydevice.train.callbacks.callback import SCHEDULERS, Callback

if TYPE_CHECKING:
    from anydevice.train.trial import Trial


class Schedule(Callback):
    """Changes learning rates by a scheduler of PyTorch.

    Args:
        make: A function of the optimizer that returns the scheduler.
        each: `"epoch"` or `"step"`.
        watch: The figure that ReduceLROnPlateau gets.

    Raises:
        UsageError: If `each` is neither.

    Example:
        >>> cosine = Schedule(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=10))
    """

    def __init__(
        self, make: Callable[[Optimizer], Any], each: str = "epoch", watch: str = "val_loss"
    ) -> None:
        if each not in ("epoch", "step"):
            raise UsageError(f"expected a schedule each 'epoch' or each 'step', got {each!r}.")
        self.make, self.each, self.watch = make, each, watch
        self.scheduler: Any = None
        self._state: dict[str, Any] | None = None

    def on_start(self, trial: "Trial") -> None:  # noqa: D102
        if self.scheduler is not None:
            return
        groups = trial.optimizer.param_groups
        before = [{k: v for k, v in group.items() if k != "params"} for group in groups]
        self.scheduler = self.make(trial.optimizer)
        if self._state:  # making it has set the first rates; the checkpoint's are these
            self.scheduler.load_state_dict(self._state)
            for group, values in zip(groups, before, strict=True):
                group.update(values)

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
