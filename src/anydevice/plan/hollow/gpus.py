"""The hollow GPUs that a program is planned for; each run has a separate process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from anydevice.devices.catalogue import card
from anydevice.plan.context import Context
from anydevice.plan.hollow.compiled import AS_WRITTEN
from anydevice.plan.hollow.failures import CannotPlanError, DoesNotFitError
from anydevice.plan.hollow.isolated import isolated
from anydevice.plan.hollow.run import AMPLE, HollowRun, hollow_run
from anydevice.plan.hollow.sizes import SHARE
from anydevice.plan.hollow.steps import WHOLE


@dataclass(frozen=True)
class HollowGPUs:
    """GPUs of one kind, and how many steps are run on them.

    >>> HollowGPUs("t4", steps=2).run(train, "train").device_bytes  # doctest: +SKIP
    """

    kind: str
    count: int = 1
    steps: int = 3
    assume_zeros: bool = False
    context: Context | None = None  # by default, as the card and the newest CUDA have it
    assume_true: float = SHARE
    inference: bool = False
    sdpa: str | None = None  # the kernel that attention takes where it can
    shown: bool = False  # what the program prints
    compiles: str = AS_WRITTEN  # or EAGER, or WHOLE
    falling: bool = False  # whether float() reads ever smaller numbers, and no zeros
    around: Callable[[], AbstractContextManager[Any]] = nullcontext  # as hollow_run has it

    def run(self, program: Callable[[], object], name: str) -> HollowRun:
        """What the program's steps take, even where that is more than these GPUs have.

        It fits if it does with the largest context, and may fit if it does with the smallest. With
        plenty of memory it takes as much as with enough. If that is more than the card has, it runs
        again with what the card has, unless its tensors alone are more: the allocator could still
        return what it only keeps.
        """
        memory, context = card(self.kind).memory, self.taken
        need = self._run(program, name, AMPLE)
        if need.floats and need.unit != WHOLE and need.steps < need.wanted and not self.falling:
            with suppress(CannotPlanError):
                longer = replace(self, falling=True, shown=False).run(program, name)
                return longer if longer.steps > need.steps else need
        if need.reserved + context.high <= memory and not need.limits_itself:
            return need
        need.verdict = "no"
        again = replace(self, shown=False)  # it prints the same
        for taken, verdict in ((context.high, "yes"), (context.low, "maybe")):
            if need.allocated + taken <= memory:
                with suppress(DoesNotFitError):
                    tight = again._run(program, name, memory - taken)
                    tight.verdict = verdict
                    return tight
        return need

    def run_if_it_fits(self, program: Callable[[], object], name: str) -> HollowRun:
        """The same in less time: DoesNotFitError where it does not fit, no blocks, no times."""
        room = card(self.kind).memory - self.taken.high
        return self._run(program, name, room, brief=True)

    @property
    def taken(self) -> Context:
        """What CUDA itself takes of a GPU."""
        return self.context or Context.of(card(self.kind))

    def call(
        self, program: Callable[[], object], name: str, room: int, **options: Any
    ) -> HollowRun:
        """In this process: the run, on GPUs that leave the program so much room."""
        return hollow_run(
            program,
            self.kind,
            steps=self.steps,
            gpus=self.count,
            memory=room + self.taken.value,
            context=self.taken,
            assume_zeros=self.assume_zeros,
            assume_true=self.assume_true,
            inference=self.inference,
            sdpa=self.sdpa,
            name=name,
            compiles=self.compiles,
            falling=self.falling,
            around=self.around,
            **options,
        )

    def _run(
        self, program: Callable[[], object], name: str, room: int, *, brief: bool = False
    ) -> HollowRun:
        """Each run has a separate process: nothing of one that failed is left in the next."""
        return isolated(
            partial(self.call, program, name, room, brief=brief),
            shown=self.shown,
            waiting=f"{name} is still running on a hollow {self.kind}",
        )
