"""Many runs of one experiment: `Sweep(experiment, grid(lr=[0.1, 0.01])).run("runs/first")`."""

from collections.abc import Callable, Iterable, Mapping
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
from anydevice.sweep.suggest import Suggestions
from anydevice.sweep.suggest import do as do_suggested

if TYPE_CHECKING:
    from anydevice.sweep.plan import SweepPlan

KINDS = ("cpu", "cuda", "gpu", "mps", "xpu")


class Sweep:
    """An experiment and the runs to do it with.

    Args:
        experiment: A function of a `Run`. It returns a Trial's history or a dictionary of figures,
            or yields a dictionary for each epoch. Each run calls it in a separate process, with
            torch, numpy and random seeded with `run.seed`. None for a sweep whose runs your own
            loop does, with `track`.
        runs: The runs, from `grid` or `sample`, or dictionaries of parameters; or what `suggest`
            gives, and then `run` finds them.
        seed: The seed of runs that have no parameter `seed`.

    Raises:
        UsageError: If two runs are the same, or a parameter cannot be stored.

    Example:
        >>> import anydevice as ad
        >>> def experiment(run):
        ...     for epoch in range(3):
        ...         yield {"loss": run.lr / (epoch + 1)}
        >>> sweep = ad.Sweep(experiment, ad.grid(lr=[0.1, 0.01]))
        >>> results = sweep.run("runs/first", verbose=False)
        >>> results.best("loss").parameters
        {'lr': 0.01}

    Note [A sweep that is killed]

    What a sweep knows is on the disk, in one file for each run, which is always whole: it is
    written under another name, flushed, and renamed. So after a kill, at any instant, every record
    is one that the run wrote. The next call reads the records and does the runs that are not
    finished. A run that was cut off starts again; if its Trial writes checkpoints into
    `run.folder`, it resumes from the last one.

    A lock on a file in a run's folder says that a living process has the run. The system drops the
    lock when the process dies, however it dies, so nothing has to be cleaned up, and several sweeps
    can share a folder: each leaves the other's runs alone.

    The driver never trusts what it remembers of a process. When one has ended, it reads the record:
    finished, or else a crash, which it writes down with the signal and the last output. If the
    driver itself dies, its server's connection closes, and the server ends all runs. If the server
    dies, the kernel ends its children, and the driver starts another server.
    """

    def __init__(
        self,
        experiment: Callable[[Run], Any] | None,
        runs: Iterable[Run | Mapping[str, Any]] | Suggestions,
        *,
        seed: int = 0,
    ) -> None:
        if experiment is not None and not callable(experiment):
            raise UsageError(f"expected an experiment, a function of a run, got {experiment!r}.")
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise UsageError(f"expected a whole number as the seed, got {seed!r}.")
        self.experiment = experiment
        self.suggestions = runs if isinstance(runs, Suggestions) else None
        self.runs = () if isinstance(runs, Suggestions) else runs_of(runs)
        self.seed = seed
        self.parameters = (
            list(runs.spaces) if isinstance(runs, Suggestions) else names_of(self.runs)
        )

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
        """Does the runs that are not done in the folder yet, and gives the results of all.

        Args:
            folder: Where the records are. The same call resumes a sweep that was interrupted.
            workers: How many runs at a time. Default: one for each GPU, or one.
            gpus: How many GPUs each run has: 1, 2 or a share such as 0.5. Default: one, or an equal
                share where there are more workers than GPUs.
            stop: When to stop weak runs early, such as `ad.halving("accuracy")`. Default: never.
            fuse: Whether to train runs as one program that differ only in the seed or in numbers of
                the optimizer, where that is faster.
            engine: "ray" for a Ray cluster. Default: this machine.
            retry_failed: Whether to do runs again that failed.
            verbose: Whether to show how the sweep proceeds.

        Returns:
            The results of all runs of this sweep, also of those that were done before.

        Raises:
            UsageError: If the folder has the runs of another sweep, or the experiment cannot be
                sent to another process.
            DeviceNotFound: If a run names a device that is not here.
            RecordError: If a record cannot be written. The records before it are intact.
        """
        if experiments.loading_program:
            raise experiments.ReachedTheSweep
        if self.experiment is None:
            raise UsageError("expected a sweep with an experiment to run, got one to track().")
        if engine not in (None, "ray") or (engine and fuse):
            raise UsageError(f"expected engine='ray' (without fuse) or none, got {engine!r}.")
        folder = Path(folder)
        if self.suggestions:
            if fuse or engine:
                raise UsageError("expected suggest() without fuse and engine, got one of them.")
            number = Places((Run({}),), workers, gpus).workers
            how: dict[str, Any] = {"workers": workers, "gpus": gpus, "stop": stop}
            how |= {"retry_failed": retry_failed, "verbose": verbose}
            return do_suggested(self, self.suggestions, folder, number, **how)
        if not engine:
            self._refuse_absent_devices()
        shipped = experiments.shipped(self.experiment)
        about = self._enter(folder)
        left, damaged = left_of(folder, self.runs, retry_failed)
        for each in damaged:
            log.warning(f"anydevice: {each} Remove {each.path.parent} to do the run again.")
        if left:
            places = Places(self.runs, workers, None if engine else gpus)
            if stop:
                stop = stop.afresh()  # runs in another folder do not count here
                for record in Results.of(folder):
                    if record.finished:
                        stop.learn(record.key, record.epochs)
            settings = Settings(folder.absolute(), shipped, about, self.seed, retry_failed, stop)
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
        """Predicts which runs fit a GPU, and how long a step takes, without starting any.

        Args:
            gpu: A kind of GPU from the catalogue, as `anydevice devices --known` lists them.
            batch_arg: The parameter that is the batch size, to find the largest that fits as well.
            assume_zeros: Whether values that the program reads from the GPU count as zero, instead
                of ending the plan.

        Returns:
            A plan with a row for each run; `sweep.plan("t4").too_large` lists those that do not
            fit.

        Raises:
            UsageError: If the catalogue has no such GPU, or no run has the parameter `batch_arg`.
        """
        from anydevice.sweep.plan import plan_sweep

        if self.suggestions:
            raise UsageError("expected a sweep of known runs to plan, got one that suggests them.")
        return plan_sweep(self, gpu, batch_arg=batch_arg, assume_zeros=assume_zeros)

    def track(self, run: Run, folder: str | Path | None = None) -> Tracker:
        """Records a run that your own loop does: `with sweep.track(run, "runs/first") as t: …`.

        Args:
            run: A run of this sweep.
            folder: Where the records are. Inside an experiment, leave it out.

        Returns:
            A tracker: call `t.batch(loss=loss, size=len(y))` for each batch and `t.epoch()` after
            each epoch. `batch` does not wait for the device.

        Raises:
            UsageError: If the run is none of this sweep, is done, or is under way elsewhere.

        Example:
            >>> import anydevice as ad
            >>> sweep = ad.Sweep(None, ad.grid(lr=[0.1, 0.01]))
            >>> for run in sweep.left("runs/by-hand"):
            ...     with sweep.track(run, "runs/by-hand") as t:
            ...         t.epoch(loss=run.lr)
            >>> sweep.results("runs/by-hand").complete
            True
        """
        if run.key in worker.trackers:
            return worker.trackers[run.key]
        if self.suggestions:
            raise UsageError("expected a sweep of known runs to track, got one that suggests them.")
        if run not in self.runs:
            raise UsageError(f"expected a run of this sweep, got ({run}).")
        if folder is None:
            raise UsageError("expected a folder for the records, got none: track(run, folder).")
        folder = Path(folder).absolute()  # the loop may change the working directory
        about = self._enter(folder)
        inside = run.inside(folder_of(folder, run.key), self.seed)
        return Tracker(inside, folder, about)

    def left(self, folder: str | Path) -> list[Run]:
        """The runs that are not done in the folder yet, in the order of the sweep.

        Args:
            folder: Where the records are; it need not exist.

        Raises:
            UsageError: If it is a file.
        """
        refuse_file(Path(folder))
        return left_of(Path(folder), self.runs, retry_failed=False)[0]

    def results(self, folder: str | Path) -> Results:
        """The results that the folder has of this sweep's runs by now.

        Args:
            folder: Where the records are.

        Raises:
            UsageError: If it is not the folder of a sweep.
        """
        return Results.of(folder) if self.suggestions else Results.of(folder).only(self.runs)

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
