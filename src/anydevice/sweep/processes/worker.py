"""What happens in the process of a run: its experiment, and the record of it."""

import errno
import os
import random
import sys
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anydevice import system
from anydevice.errors import UsageError
from anydevice.sweep.grid import Run
from anydevice.sweep.halving import Halving
from anydevice.sweep.processes.messages import (
    DiskFailed,
    Epoch,
    Job,
    Resources,
    Taken,
    Verdict,
)
from anydevice.sweep.records.claims import claim
from anydevice.sweep.records.records import RecordError, disk_errors, folder_of, is_to_do, read
from anydevice.sweep.records.tracker import StoppedEarly, Tracker
from anydevice.train.callbacks.callback import everywhere
from anydevice.train.distributed.ending import TERMINATED

OUTPUT = "output.txt"
RANK_OF = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
DISK = 65  # the exit code where a record cannot be written
# What a run may do to itself, by a limit on its files or another user: the sweep has other runs.
OWN_LIMITS = (errno.EFBIG, errno.EACCES, errno.EPERM)
trackers: dict[str, Tracker] = {}  # of the runs that this process does, by their keys


def main(job: Job, line: Connection) -> int:
    """Does one run; the exit code says what the record cannot."""
    run = run_inside(job, job.runs[0])
    try:
        held = claim(job.folder, run.key)
        if held is None or not is_to_do(read(job.folder, run.key), job.retry_failed):
            line.send_bytes(Taken().to_json())
            return 0
        write_output_to(run.folder / OUTPUT)
        judge = Judge(run.key, line, job.halving)
        tracker = Tracker(
            run, job.folder, job.about, judge, job.resources.gpus, own_process=True, held=held
        )
        tracker.start()
        carry_out(job, run, tracker)
    except RecordError as error:
        cause = error.__cause__
        own = isinstance(cause, OSError) and cause.errno in OWN_LIMITS
        line.send_bytes(DiskFailed(str(error), own).to_json())
        return DISK
    except SystemExit as error:  # after SIGTERM
        return error.code if isinstance(error.code, int) else 1
    return 0


def run_inside(job: Job, run: Run) -> Run:
    """A run as its experiment gets it: with its folder and its seed."""
    return run.inside(folder_of(job.folder, run.key), job.seed)


def carry_out(job: Job, run: Run, tracker: Tracker) -> None:
    """Runs the experiment to its end, and records how it ended."""
    trackers[run.key] = tracker
    try:
        take_resources(job.resources)
        experiment = job.experiment.unpacked()
        everywhere.append(tracker)  # of trials that the program has outside it, nothing is kept
        seed_all(run.seed)
        tracker.begin()
        result = experiment(run)
        if isinstance(result, Iterator):
            result = collected(result, tracker)
        tracker.take(result)
        tracker.end(StoppedEarly() if tracker.stopped else None)
    except (KeyboardInterrupt, RecordError):
        raise
    except SystemExit as error:
        if _asked_to_end(error):
            raise
        tracker.end(RuntimeError(f"the experiment ended its process with exit code {error.code}"))
    except BaseException as error:
        own = error.__traceback__ and error.__traceback__.tb_next  # without this function's line
        tracker.end(error.with_traceback(own) if own else error)


def seed_all(seed: int) -> None:
    """Seeds every source of random numbers that an experiment may use."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


class Judge:
    """Reports each epoch of a run to the sweep; at a rung, asks it whether the run continues."""

    def __init__(self, key: str, line: Connection, halving: Halving | None) -> None:
        self.key, self.line, self.halving = key, line, halving

    def __call__(self, epoch: dict[str, Any]) -> bool:
        """Whether the run continues."""
        halving = self.halving
        asks = halving is not None and halving.is_rung(epoch["epoch"])
        if halving and asks and halving.watch not in epoch:
            raise UsageError(
                f"expected the figure {halving.watch!r}, by which weak runs are stopped, in every "
                f"record, got {', '.join(epoch)}."
            )
        try:
            self.line.send_bytes(Epoch(self.key, epoch, asks).to_json())
            return Verdict.from_json(self.line.recv_bytes()).continues if asks else True
        except (OSError, EOFError):
            return True  # the sweep has gone: its server is about to end this run


def collected(records: Iterator[Any], tracker: Tracker) -> Any:
    """Tracks the records that a generator yields, and gives what it returns."""
    while True:
        try:
            record = next(records)
        except StopIteration as end:
            return end.value
        if not isinstance(record, Mapping):
            raise UsageError(f"expected records that are dictionaries, got {record!r} yielded.")
        try:
            tracker.epoch(**record)
        except StoppedEarly:
            getattr(records, "close", lambda: None)()
            raise


def take_resources(resources: Resources) -> None:
    """Confines this process to what it has of the machine."""
    for name in RANK_OF:  # it trains by itself, even where torchrun has started the sweep
        os.environ.pop(name, None)
    if resources.threads:
        os.environ["OMP_NUM_THREADS"] = str(resources.threads)
        torch.set_num_threads(resources.threads)
    if resources.visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = resources.visible
    if resources.current is not None:
        torch.cuda.set_device(resources.current)
    if resources.share < 1:
        torch.cuda.set_per_process_memory_fraction(resources.share)


def write_output_to(path: Path) -> None:
    """Sends what the run prints to a file in its folder, with the trace of a crash."""
    with disk_errors(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    system.show_crashes(2)


def _asked_to_end(error: SystemExit) -> bool:
    """Whether SIGTERM ended it: a Trial with checkpoints then exits so."""
    return error.code == TERMINATED
