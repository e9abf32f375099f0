"""Which runs of a sweep will not fit a GPU, before any is started."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from anydevice.devices.catalogue import card
from anydevice.errors import UsageError
from anydevice.plan.batch import Largest, largest_batch
from anydevice.plan.hollow.gpus import HollowGPUs
from anydevice.plan.hollow.run import HollowRun
from anydevice.plan.time.predict import Prediction
from anydevice.tables import Shown, Table
from anydevice.text import UNSET, duration_text, size_text

if TYPE_CHECKING:
    from anydevice.sweep.grid import Run
    from anydevice.sweep.sweep import Sweep

ON_CPU = "on the CPU"
STEPS = 2  # from the second on, the optimizer's state takes memory too


@dataclass(frozen=True)
class RunPlan:
    """What one run takes.

    Attributes:
        run: The run.
        fits: Whether it fits; None if it could not be planned.
        device_bytes: The memory that it takes on the GPU.
        time: The predicted time of a step.
        why_not: Why it could not be planned; empty if it was.
        largest: The largest batch that fits, if it was asked for.
    """

    run: Run
    fits: bool | None = None
    device_bytes: int | None = None
    time: Prediction | None = None
    why_not: str = ""
    largest: Largest | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "key": self.run.key,
            "parameters": self.run.parameters,
            "fits": self.fits,
            "device_bytes": self.device_bytes,
            "time": self.time.to_dict() if self.time else None,
            "why_not": self.why_not or None,
            "largest_batch": self.largest and self.largest.batch,
        }


@dataclass(repr=False)
class SweepPlan(Shown):
    """What `sweep.plan()` returns: what each run takes.

    Attributes:
        gpu: The kind of GPU.
        parameters: The names of the sweep's parameters.
        plans: One RunPlan for each run, in the sweep's order.

    Example:
        >>> planned = sweep.plan("t4")  # doctest: +SKIP
        >>> planned.fits, [run.key for run in planned.too_large]  # doctest: +SKIP
        (False, ['4648bf7c44de5703'])
    """

    gpu: str
    parameters: list[str]
    plans: list[RunPlan]

    @property
    def fits(self) -> bool:
        """Whether every run that uses the GPU fits."""
        return not self.too_large

    @property
    def too_large(self) -> list[Run]:
        """The runs that do not fit."""
        return [plan.run for plan in self.plans if plan.fits is False]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        plans = [plan.to_dict() for plan in self.plans]
        return {"gpu": self.gpu, "fits": self.fits, "runs": plans}

    def table(self) -> Table:
        """One row for each run; those that do not fit first."""
        figures = ["device bytes", "step"]
        figures += ["largest batch"] * any(plan.largest for plan in self.plans)
        table = Table((*self.parameters, "fits", *figures), right=figures)
        table.title = f"{len(self.plans)} runs on {card(self.gpu).name}: {self._sentence()}"
        for plan in sorted(self.plans, key=lambda plan: plan.fits is not False):
            values = (plan.run.parameters.get(name, UNSET) for name in self.parameters)
            fits = {True: "yes", False: "NO", None: plan.why_not}[plan.fits]
            time = duration_text(plan.time.seconds) if plan.time else UNSET
            row = [*map(str, values), fits, size_text(plan.device_bytes), time]
            if len(figures) > 2:
                row.append(f"{plan.largest.batch:,}" if plan.largest else UNSET)
            table.rows.append(row)
        return table

    def _sentence(self) -> str:
        number = len(self.too_large)
        answer = f"{number} will not fit" if number else "none is too large"
        unknown = sum(plan.fits is None and plan.why_not != ON_CPU for plan in self.plans)
        return f"{answer}, {unknown} could not be planned" if unknown else answer

    def _shown(self) -> Iterator[Table]:
        yield self.table()


def plan_sweep(
    sweep: Sweep, gpu: str, *, batch_arg: str | None = None, assume_zeros: bool = False
) -> SweepPlan:
    """Runs the first steps of each run on a hollow GPU of this kind, one run after another."""
    if sweep.experiment is None:
        raise UsageError("expected a sweep with an experiment to plan, got one to track().")
    if batch_arg is not None:
        _check_batch(sweep, batch_arg)
    kind = card(gpu).kind
    gpus = HollowGPUs(kind, steps=STEPS, assume_zeros=assume_zeros)
    planning = _Planning(sweep.experiment, sweep.seed, gpus, batch_arg)
    return SweepPlan(kind, sweep.parameters, [planning.of(run) for run in sweep.runs])


def _check_batch(sweep: Sweep, name: str) -> None:
    for run in sweep.runs:
        size = run.parameters.get(name)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise UsageError(
                f"expected a parameter of every run with its batch size as batch_arg, got {name!r},"
                f" which is {size!r} in ({run})."
            )


@dataclass
class _Planning:
    """Plans run after run; those that differ in their batch size alone share one search."""

    experiment: Callable[[Run], Any]
    seed: int
    gpus: HollowGPUs
    batch_arg: str | None
    searched: dict[str, Largest] = field(default_factory=dict)

    def of(self, run: Run) -> RunPlan:
        """What it takes, and the largest batch if that was asked for."""
        if run.parameters.get("device") == "cpu":
            return RunPlan(run, why_not=ON_CPU)
        subject = _Experiment(self.experiment, run, self.seed, self.batch_arg)
        try:
            found = self.gpus.run(subject, subject.name)
            largest = self._largest(subject, found) if self.batch_arg else None
        except UsageError as error:
            return RunPlan(run, why_not=str(error))
        time = found.predicted(found.samples)
        return RunPlan(run, found.fits, found.device_bytes, time, largest=largest)

    def _largest(self, subject: _Experiment, found: HollowRun) -> Largest:
        others = subject.with_batch(1).run.key  # the same for runs that differ in it alone
        if others not in self.searched:
            name = str(self.batch_arg)
            self.searched[others] = largest_batch(subject, self.gpus, found, name)
        return self.searched[others]


@dataclass(frozen=True)
class _Experiment:
    """One run of a sweep, as a plan's subject: the experiment with the run's parameters."""

    experiment: Callable[[Run], Any]
    run: Run
    seed: int
    batch_arg: str | None

    @property
    def name(self) -> str:
        return f"the run {self.run}"

    @property
    def batch(self) -> int | None:
        return self.run.parameters[self.batch_arg] if self.batch_arg else None

    def with_batch(self, batch: int) -> _Experiment:
        parameters = {**self.run.parameters, str(self.batch_arg): batch}
        return replace(self, run=type(self.run)(parameters))

    def __call__(self) -> None:
        """The experiment as the sweep would call it; one that yields runs to its end."""
        with TemporaryDirectory() as folder:
            result = self.experiment(self.run.inside(Path(folder), self.seed))
            if isinstance(result, Iterator):
                for _ in result:
                    pass
