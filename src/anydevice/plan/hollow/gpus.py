"""The hollow GPUs that a program is planned for; each run is in a process forked for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from anydevice.plan.hollow.isolated import isolated
from anydevice.plan.hollow.run import HollowRun, hollow_run


@dataclass(frozen=True)
class HollowGPUs:
    """GPUs of one kind, and how many steps are run on them.

    >>> HollowGPUs("t4", steps=2).run(train, "train").device_bytes  # doctest: +SKIP
    """

    kind: str
    count: int = 1
    steps: int = 3
    assume_zeros: bool = False

    def run(self, program: Callable[[], object], name: str) -> HollowRun:
        """What the program's steps take, even where that is more than these GPUs have."""
        return isolated(partial(self._run, program, name))

    def run_if_it_fits(self, program: Callable[[], object], name: str) -> HollowRun:
        """The same in less time: DoesNotFitError where it does not fit, no blocks, no times."""
        return isolated(partial(self._run, program, name, only_if_it_fits=True))

    def _run(
        self, program: Callable[[], object], name: str, *, only_if_it_fits: bool = False
    ) -> HollowRun:
        return hollow_run(
            program,
            self.kind,
            steps=self.steps,
            gpus=self.count,
            assume_zeros=self.assume_zeros,
            name=name,
            only_if_it_fits=only_if_it_fits,
        )
