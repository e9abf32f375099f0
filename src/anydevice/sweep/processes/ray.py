"""The same sweep on a Ray cluster: runs are its tasks, and their records come to the driver."""

import platform
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from anydevice.errors import UsageError
from anydevice.notices import log
from anydevice.sweep.grid import Run
from anydevice.sweep.processes import worker
from anydevice.sweep.processes.driver import BETWEEN, Settings, Watcher
from anydevice.sweep.processes.messages import Job, Resources
from anydevice.sweep.processes.places import gpu_of
from anydevice.sweep.records.claims import Claim, claim
from anydevice.sweep.records.provenance import versions
from anydevice.sweep.records.records import Record, is_to_do, read, write
from anydevice.sweep.records.tracker import Tracker

ATTEMPTS = 2  # at a run whose process or machine goes away


def ray_here() -> Any:
    """The package ray, and a cluster: the one of RAY_ADDRESS, or one on this machine."""
    try:
        import ray
    except ImportError:
        raise UsageError(
            "expected the package ray for engine='ray', got none: pip install 'anydevice[ray]'."
        ) from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False, configure_logging=False)
    return ray


def do(
    settings: Settings,
    watcher: Watcher,
    runs: Sequence[Run],
    workers: int | None,
    gpus: float | None,
) -> None:
    """Does the runs on the cluster; each has a CPU, and `gpus` GPUs if its device is one."""
    if settings.halving:
        raise UsageError(
            "expected no stop= with engine='ray', where runs cannot ask whether they continue."
        )
    for run in runs:
        if (gpu_of(run) or -1) > 0:
            raise UsageError(
                f"expected device='cuda' for runs on a cluster, which gives them their GPU, got "
                f"{run.device!r}."
            )
    _Cluster(ray_here(), settings, watcher, workers, gpus).do(runs)


class _Cluster:
    """Hands out runs to the cluster, and writes the records that they send."""

    def __init__(
        self,
        ray: Any,
        settings: Settings,
        watcher: Watcher,
        workers: int | None,
        gpus: float | None,
    ) -> None:
        from ray.util.queue import Queue

        self.ray, self.settings, self.watcher = ray, settings, watcher
        there = ray.cluster_resources()
        self.gpus = (1.0 if gpus is None else gpus) if there.get("GPU") else 0.0
        self.workers = workers or max(1, int(there.get("CPU", 1)))
        self.mail = Queue(actor_options={"num_cpus": 0})
        self.task = ray.remote(max_calls=1, max_retries=0)(carry)  # a process for each run
        self.running: dict[Any, tuple[Run, Claim]] = {}
        self.attempts: dict[str, int] = {}

    def do(self, runs: Sequence[Run]) -> None:
        """Returns when all runs are done."""
        self.waiting = deque(runs)
        try:
            while self.waiting or self.running:
                while self.waiting and len(self.running) < self.workers:
                    self._start(self.waiting.popleft())
                self._hear_all()
                self.watcher.tick()
        finally:
            for task in self.running:
                self.ray.cancel(task, force=True)
            self.mail.shutdown(force=True)

    def _start(self, run: Run) -> None:
        folder = self.settings.folder
        held = claim(folder, run.key)
        if held is None:
            log.warning(f"anydevice: ({run}) is under way in another sweep, and left to it.")
            return
        if not is_to_do(read(folder, run.key), self.settings.retry_failed):
            return held.release()
        gpus = self.gpus if gpu_of(run) is not None else 0.0
        resources = Resources(threads=1, share=gpus if 0 < gpus < 1 else 1.0)
        settings = replace(self.settings, folder=folder.absolute())
        job = Job((run,), resources=resources, workers=self.workers, **vars(settings))
        task = self.task.options(num_cpus=1, num_gpus=gpus).remote(job, sys.path, self.mail)
        self.running[task] = run, held
        self.watcher.started(run)

    def _hear_all(self) -> None:
        """Writes what has come, then sees which runs have ended: they send nothing later."""
        ended, _ = self.ray.wait(list(self.running), timeout=BETWEEN) if self.running else ([], [])
        for record in self.mail.get_nowait_batch(self.mail.qsize()):
            self._write(record)
        for task in ended:
            run, held = self.running.pop(task)
            try:
                self.ray.get(task)
            except self.ray.exceptions.RayError as error:
                self._lost(run, error)
            else:
                self._report_ended(run)
            held.release()

    def _write(self, record: Record) -> None:
        before = read(self.settings.folder, record.key)
        write(self.settings.folder, record)
        if len(record.epochs) > (len(before.epochs) if isinstance(before, Record) else 0):
            self.watcher.epoch(Run(record.parameters), record.last)

    def _lost(self, run: Run, error: Exception) -> None:
        """Does a run again whose process or machine went away; the second time, it has failed."""
        self.attempts[run.key] = self.attempts.get(run.key, 1) + 1
        why = str(error).strip().splitlines()[0]
        if self.attempts[run.key] <= ATTEMPTS:
            log.warning(f"anydevice: ({run}) starts again, because its process went away: {why}")
            return self.waiting.append(run)
        there = read(self.settings.folder, run.key)
        kept = there if isinstance(there, Record) else Record(run.key, run.parameters)
        write(self.settings.folder, replace(kept, state="failed", error=str(error)))
        self._report_ended(run)

    def _report_ended(self, run: Run) -> None:
        there = read(self.settings.folder, run.key)
        if isinstance(there, Record):
            self.watcher.ended(run, there)


# ---- in the task ----


class MailingTracker(Tracker):
    """A run's record, sent to the driver instead of written."""

    def __init__(self, run: Run, job: Job, send: Callable[[Record], None]) -> None:
        about = {**job.about, "host": platform.node(), "versions": versions()}
        super().__init__(run, job.folder, about, own_process=True)
        self._send = send

    def store(self, record: Record, *, epoch: bool) -> None:  # noqa: D102
        self._send(record)


def carry(job: Job, path: list[str], mail: Any) -> None:
    """Does one run, in a process of the cluster that has the driver's sys.path."""
    sys.path.extend(place for place in path if place not in sys.path)
    run = worker.run_inside(job, job.runs[0])
    with suppress(OSError):  # another machine, without the driver's disk
        run.folder.mkdir(parents=True, exist_ok=True)
    if not torch.cuda.is_available():  # a cluster may count other things as GPUs
        job = replace(job, resources=replace(job.resources, share=1.0))
    tracker = MailingTracker(run, job, mail.put)
    tracker.start()
    worker.carry_out(job, run, tracker)
