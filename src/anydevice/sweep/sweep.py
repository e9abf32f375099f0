"""Many runs of one experiment: `Sweep(experiment, grid(lr=[0.1, 0.01])).run("runs/first")`."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anydevice.devices.choose import DeviceNotFound, pick
from anydevice.errors import UsageError
from anydevice.notices import log
from anydevice.sweep import experiment as experiments
from anydevice.sweep.fuse import driver as fusing
from anydevice.sweep.grid import Run, names_of, runs_of
from anydevice.sweep.halving import Halving
from anydevice.sweep.processes import ray, worker
from anydevice.sweep.processes.driver import Settings
from anydevice.sweep.processes.places import Places
from anydevice.sweep.processes.runner import Runner, left_of
from anydevice.sweep.records.provenance import provenance
from anydevice.sweep.records.records import Sheet, enter, folder_of, refuse_file
from anydevice.sweep.records.tracker import Tracker
from anydevice.sweep.results.live import watching
from anydevice.sweep.results.results import Results

if TYPE_CHECKING:
    from anydevice.sweep.plan import SweepPlan

KINDS = ("cpu", "cuda", "gpu", "mps", "xpu")


class Sweep:
    """An experiment and the runs to do it with.

    `experiment(run)` returns a Trial's history or a dictionary, or yields a record an epoch. It is
    called in a process of its own for each run, with `run.seed` as the seed.

    >>> sweep = Sweep(experiment, grid(lr=[0.1, 0.01], device=["cuda", "cpu"]))
    >>> sweep.run("runs/first").table()
    """

    def __init__(
        self,
        experiment: Callable[[Run], Any] | None,
        runs: Iterable[Run | Mapping[str, Any]],
        *,
        seed: int = 0,
    ) -> None:
        if experiment is not None and not callable(experiment):
            raise UsageError(f"expected an experiment, a function of a run, got {experiment!r}.")
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise UsageError(f"expected a whole number as the seed, got {seed!r}.")
        self.experiment = experiment
        self.runs = runs_of(runs)
        self.seed = seed
        self.parameters = names_of(self.runs)

    def run(
        self,
        folder: str | Path,
        *,
        workers: int | None = None,
        gpus: float | None = None,
        stop: Halving | None = None,
        fuse: bool = False,
        engine: str | None = None,
        retry_failed: bool = False,
        verbose: bool = True,
    ) -> Results:
        """Does the runs that are not done in the folder, and gives the results of all.

        `workers` run at a time: as many as there are GPUs, or one. Each has `gpus` of them, such as
        1, 2 or 0.5; where there are more workers than GPUs, each has its share. `stop` is
        `ad.halving("accuracy")`, or None: every run goes to its end. `fuse` trains runs that differ
        only in numbers of the optimizer or the seed as one program, where that is faster.
        `engine="ray"` does the runs on a Ray cluster.
        """
        if experiments.loading_program:
            raise experiments.ReachedTheSweep
        if self.experiment is None:
            raise UsageError("expected a sweep with an experiment to run, got one to track().")
        if engine not in (None, "ray") or (engine and fuse):
            raise UsageError(f"expected engine='ray' (without fuse) or none, got {engine!r}.")
        folder = Path(folder)
        if not engine:
            self._refuse_absent_devices()
        shipped = experiments.shipped(self.experiment)
        about = self._enter(folder)
        left, damaged = left_of(folder, self.runs, retry_failed)
        for each in damaged:
            log.warning(f"anydevice: {each} Remove {each.path.parent}, and the run is done again.")
        if left:
            places = Places(self.runs, workers, None if engine else gpus)
            if stop:
                stop = replace(stop, rungs={})  # another folder's runs are none of this one's
                for record in Results.of(folder):
                    if record.finished:
                        stop.learn(record.key, record.epochs)
            settings = Settings(folder, shipped, about, self.seed, retry_failed, stop)
            with watching(folder, self.runs, left, places.workers, verbose) as watcher:
                if engine:
                    ray.do(settings, watcher, left, workers, gpus)
                    left = []
                if fuse:
                    left = fusing.do(settings, places, watcher, left)
                if left:
                    Runner(settings, places, watcher).do(left)
        return self.results(folder)

    def plan(
        self, gpu: str = "h100", *, batch_arg: str | None = None, assume_zeros: bool = False
    ) -> "SweepPlan":
        """Which runs will not fit such a GPU: `sweep.plan("t4").too_large`; none is started.

        With `batch_arg`, the parameter that is the batch size, the largest that fits is found too.
        """
        from anydevice.sweep.plan import plan_sweep

        return plan_sweep(self, gpu, batch_arg=batch_arg, assume_zeros=assume_zeros)

    def track(self, run: Run, folder: str | Path | None = None) -> Tracker:
        """A record for a loop of your own: `with sweep.track(run, "runs/first") as t: …`.

        Inside an experiment, the record of its run: `with sweep.track(run) as t: …`.
        """
        if run.key in worker.trackers:
            return worker.trackers[run.key]
        if run not in self.runs:
            raise UsageError(f"expected a run of this sweep, got ({run}).")
        if folder is None:
            raise UsageError("expected a folder for the records, got none: track(run, folder).")
        folder = Path(folder)
        about = self._enter(folder)
        inside = run.inside(folder_of(folder, run.key), self.seed)
        return Tracker(inside, folder, about)

    def left(self, folder: str | Path) -> list[Run]:
        """The runs that are not done there: `for run in sweep.left("runs/first"): …`."""
        refuse_file(Path(folder))
        return left_of(Path(folder), self.runs, retry_failed=False)[0]

    def results(self, folder: str | Path) -> Results:
        """What there is of this sweep in the folder."""
        return Results.of(folder).only(self.runs)

    def _enter(self, folder: Path) -> dict[str, Any]:
        name = experiments.name_of(self.experiment)
        enter(folder, Sheet(self.parameters, name, [run.key for run in self.runs]))
        return provenance(folder, experiments.code_of(self.experiment))

    def _refuse_absent_devices(self) -> None:
        """Before the first run, rather than in each."""
        for device in dict.fromkeys(run.parameters.get("device") for run in self.runs):
            if isinstance(device, str) and device.partition(":")[0] in KINDS:
                try:
                    pick(device)
                except DeviceNotFound as error:
                    raise DeviceNotFound(f"the parameter device: {error}") from error
