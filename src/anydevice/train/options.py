"""The options of a training: `Trial.with_options(accumulate=4, clip_norm=1.0)`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from anydevice.errors import UsageError

KEEP: Any = ...  # an option that stays as it is

AT_ANY_TIME = {
    "accumulate",
    "clip_norm",
    "deterministic",
    "on_oom",
}  # others: before step 1


@dataclass(frozen=True)
class Options:
    """What `with_options` sets."""

    accumulate: int = 1
    clip_norm: float | None = None
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
        if self.clip_norm is not None and not _is_positive(self.clip_norm):
            raise UsageError(f"expected a clip_norm above 0, got {self.clip_norm!r}.")


def _is_positive(number: object) -> bool:
    return isinstance(number, (int, float)) and number > 0


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
