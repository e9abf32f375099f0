"""The options of a training: `Trial.with_options(accumulate=4, clip_norm=1.0)`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from anydevice.errors import UsageError

KEEP: Any = ...  # an option that stays as it is

AT_ANY_TIME = {
    "accumulate",
    "clip_norm",
    "clip_value",
    "deterministic",
    "freeze",
    "label_smoothing",
    "mixup",
    "on_oom",
}  # others: before step 1


@dataclass(frozen=True)
class Options:
    """What `with_options` sets."""

    accumulate: int = 1
    clip_norm: float | None = None
    clip_value: float | None = None
    schedule: str | None = None
    warmup: float = 0
    rates: Mapping[str, float] = field(default_factory=dict)
    freeze: str | Sequence[str] = ()
    label_smoothing: float = 0.0
    mixup: float = 0.0
    compile: bool = False
    channels_last: bool = False
    deterministic: bool = False
    seed: int | None = None
    on_oom: str = "split"
    strategy: str = "ddp"

    def changed(self, options: dict[str, Any], steps: int) -> "Options":
        """With other values for some, of a trial that has made so many steps."""
        options = {name: value for name, value in options.items() if value is not KEEP}
        if steps and (early := options.keys() - AT_ANY_TIME):
            raise UsageError(
                f"expected {', '.join(sorted(early))} before the first step, got it after "
                f"{steps}: make another trial with it."
            )
        return replace(self, **options)

    def __post_init__(self) -> None:
        if not isinstance(self.accumulate, int) or self.accumulate < 1:
            raise UsageError(f"expected accumulate of 1 or more batches, got {self.accumulate!r}.")
        for name in ("compile", "channels_last", "deterministic"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"expected {name} of True or False, got {getattr(self, name)!r}.")
        if self.seed is not None and not isinstance(self.seed, int):
            raise UsageError(f"expected a whole number or None as the seed, got {self.seed!r}.")
        if self.on_oom not in ("split", "raise"):
            raise UsageError(f"expected on_oom of 'split' or 'raise', got {self.on_oom!r}.")
        if self.strategy not in ("ddp", "fsdp", "alone"):
            raise UsageError(
                f"expected a strategy of 'ddp', 'fsdp' or 'alone', got {self.strategy!r}."
            )
        for name in ("clip_norm", "clip_value"):
            if (most := getattr(self, name)) is not None and not _is_positive(most):
                raise UsageError(f"expected a {name} above 0, got {most!r}.")
        if self.clip_norm is not None and self.clip_value is not None:
            raise UsageError("expected clip_norm or clip_value, got both: leave one out.")
        self._refuse_odd_targets()
        self._refuse_odd_rates()

    def _refuse_odd_targets(self) -> None:
        smoothing = self.label_smoothing
        if not _is_number(smoothing) or not 0 <= smoothing < 1:
            raise UsageError(f"expected a label_smoothing from 0 to 1, got {smoothing!r}.")
        if not _is_number(self.mixup) or self.mixup < 0:
            raise UsageError(f"expected a mixup of 0 or more, got {self.mixup!r}.")

    def _refuse_odd_rates(self) -> None:
        if not isinstance(self.rates, Mapping) or not all(map(_is_number, self.rates.values())):
            raise UsageError(
                'expected rates as a dictionary such as {"head*": 0.01}, of layers\' names and '
                f"learning rates, got {self.rates!r}."
            )
        patterns = [self.freeze] if isinstance(self.freeze, str) else self.freeze
        if not isinstance(patterns, (list, tuple)) or not all(isinstance(p, str) for p in patterns):
            raise UsageError(
                'expected freeze as a pattern such as "encoder*", or a list of some, got '
                f"{self.freeze!r}."
            )

    @property
    def frozen(self) -> list[str]:
        """The patterns of the layers that do not train."""
        return [self.freeze] if isinstance(self.freeze, str) else list(self.freeze)


def _is_positive(number: object) -> bool:
    return isinstance(number, (int, float)) and number > 0


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@contextmanager
def determinism(wanted: bool) -> Iterator[None]:
    """Algorithms that give the same bits each time, inside the block."""
    if not wanted:
        yield
        return
    enabled = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warns)
        torch.backends.cudnn.benchmark = benchmark
