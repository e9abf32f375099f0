"""What happens in the process of a run: its experiment, and the record of what comes of it."""

import base64
import ctypes
import faulthandler
import json
import os
import random
import signal
import sys
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anydevice.errors import UsageError
from anydevice.sweep.experiment import Shipped
from anydevice.sweep.grid import Run
from anydevice.sweep.halving import Halving
from anydevice.sweep.records.claims import claim
from anydevice.sweep.records.records import Damaged, Record, RecordError, folder_of, read, told
from anydevice.sweep.jsonable import strict
from anydevice.sweep.records.tracker import StoppedEarly, Tracker
from anydevice.train.callbacks.callback import everywhere

OUTPUT = "output.txt"
RANK_OF = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
DISK = 65  # the exit code where a record cannot be written
current: Tracker | None = None  # of the run that this process is for


def main(parent: int, order: bytes, line: Connection) -> int:
    """Does one run; the exit code tells the sweep what the record cannot."""
    job = json.loads(order)
    _die_with(parent)
    if "group" in job:
        from anydevice.sweep.fuse.process import main as together

        return together(job, line)
    folder = Path(job["folder"])
    run = Run(job["parameters"]).inside(folder_of(folder, Run(job["parameters"]).key), job["seed"])
    try:
        held = claim(folder, run.key)
        there = read(folder, run.key)
        if held is None or not again(there, job["retry_failed"]):
            line.send_bytes(json.dumps({"claimed": True}).encode())  # another process has the run
            return 0
        write_output_to(folder_of(folder, run.key) / OUTPUT)
        judge = Judge(line, Halving(**job["halving"]) if job["halving"] else None)
        follow = Tracker(run, folder, job["about"], judge, tuple(job["gpus"]), own_process=True)
        follow.start()
        carry_out(job, run, follow)
    except RecordError as error:
        line.send_bytes(json.dumps({"disk": str(error)}).encode())
        return DISK
    except SystemExit as error:  # after SIGTERM
        return error.code if isinstance(error.code, int) else 1
    return 0


def again(there: Record | Damaged | None, retry_failed: bool) -> bool:
    """Whether a run is to be done, with the record that it has: interrupted, or failed."""
    if not isinstance(there, Record):
        return there is None
    return not there.finished or (there.state == "failed" and retry_failed)


def carry_out(job: dict[str, Any], run: Run, follow: Tracker) -> None:
    """Runs the experiment to its end, good or bad."""
    global current
    current = follow
    everywhere.append(follow)
    try:
        settle(job)
        experiment = received(job["experiment"]).unpacked()
        seed_all(run.seed)
        follow.begin()
        result = experiment(run)
        if isinstance(result, Iterator):
            result = drained(result, follow)
        follow.take(result)
        follow.end(StoppedEarly() if follow.stopped else None)
    except (KeyboardInterrupt, RecordError):
        raise
    except SystemExit as error:
        if _asked_to_end(error):
            raise
        follow.end(RuntimeError(f"the experiment ended its process with exit code {error.code}"))
    except BaseException as error:
        own = error.__traceback__ and error.__traceback__.tb_next  # without this function's line
        follow.end(error.with_traceback(own) if own else error)


def seed_all(seed: int) -> None:
    """Every source of random numbers that an experiment may draw from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


class Judge:
    """Tells the sweep of an epoch, and asks it whether the run goes on where that is a question."""

    def __init__(self, line: Connection, halving: Halving | None) -> None:
        self.line, self.halving = line, halving

    def __call__(self, epoch: dict[str, Any]) -> bool:
        """Whether the run goes on."""
        halving = self.halving
        asks = halving is not None and halving.is_rung(epoch["epoch"])
        if halving and asks and halving.watch not in epoch:
            raise UsageError(
                f"expected the figure {halving.watch!r}, by which weak runs are stopped, in every "
                f"record, got {', '.join(epoch)}."
            )
        try:
            self.line.send_bytes(json.dumps({"epoch": strict(epoch), "asks": asks}).encode())
            verdict: bool = json.loads(self.line.recv_bytes()) if asks else True
        except (OSError, EOFError):
            return True  # the sweep has gone: its server is about to end this run
        return verdict


def drained(records: Iterator[Any], follow: Tracker) -> Any:
    """Takes in the records that a generator yields, and gives what it returns."""
    while True:
        try:
            record = next(records)
        except StopIteration as end:
            return end.value
        if not isinstance(record, Mapping):
            raise UsageError(f"expected records that are dictionaries, got {record!r} yielded.")
        try:
            follow.epoch(**record)
        except StoppedEarly:
            getattr(records, "close", lambda: None)()
            raise


def received(packed: dict[str, Any]) -> Shipped:
    """The experiment as the sweep has sent it."""
    return Shipped(base64.b64decode(packed["data"]), packed["program"], packed["package"])


def settle(job: dict[str, Any]) -> None:
    """The share of the machine that this run has."""
    for name in RANK_OF:  # it trains by itself, also where torchrun has started the sweep
        os.environ.pop(name, None)
    if job["threads"]:
        os.environ["OMP_NUM_THREADS"] = str(job["threads"])
        torch.set_num_threads(job["threads"])
    if job["visible"] is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = job["visible"]
    if job["current"] is not None:
        torch.cuda.set_device(job["current"])
    if job["share"] < 1:
        torch.cuda.set_per_process_memory_fraction(job["share"])


def write_output_to(path: Path) -> None:
    """What the run prints goes into its folder, with the trace of a crash."""
    with told(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()


def _die_with(parent: int) -> None:
    """Ends this process when its parent ends, in whatever way; where the system can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)


def _asked_to_end(error: SystemExit) -> bool:
    """As a Trial with checkpoints does after SIGTERM."""
    return error.code == 128 + signal.SIGTERM
