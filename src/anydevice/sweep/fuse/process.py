"""In the process of a group of runs: their trials are collected, trained as one, and given back.

Each experiment is a thread, and one of them is at work at a time: it gets as far as its trial.run,
waits there for the training of all, and goes on with the trained trial.
"""

import json
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from anydevice.sweep.fuse.reasons import times_as_fast, why_not
from anydevice.sweep.fuse.training import Together, resident
from anydevice.sweep.grid import Run
from anydevice.sweep.halving import Halving
from anydevice.sweep.processes import worker
from anydevice.sweep.records.claims import claim
from anydevice.sweep.records.records import RecordError, folder_of, read
from anydevice.sweep.records.tracker import StoppedEarly, Tracker
from anydevice.train.callbacks.callback import everywhere, reactions
from anydevice.train.data.random_state import random_state, set_random_state
from anydevice.train.history import History
from anydevice.train.trial import Trial, instead

AT_LEAST = 1.0  # times as fast as one by one, or runs are not trained as one


class NotAsOne(Exception):  # noqa: N818, no error
    """The runs have to be done one by one; its text says why."""


def main(job: dict[str, Any], line: Connection) -> int:
    """Does what runs of the group can be done as one; those that cannot are left as they were."""
    try:
        members = _members(job, line)
        if len(members) > 1:
            _tell(line, said=_done_together(members, job["workers"]))
    except NotAsOne as error:
        _tell(line, said=f"are done one by one, because {error}")
    except RecordError as error:
        _tell(line, disk=str(error))
        return worker.DISK
    return 0


class Follow(Tracker):
    """The record of one run of a group, whose memory is the group's."""

    def _used(self) -> dict[str, Any]:
        return {}


class Member:
    """One run: its experiment, in a thread that works only during `goes_on()`."""

    def __init__(self, run: Run, follow: Follow, experiment: Callable[[Run], Any]) -> None:
        self.run, self.follow, self.experiment = run, follow, experiment
        self.trial: Trial | None = None
        self.epochs = 0
        self.error: BaseException | None = None
        self.ended = False
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._work, daemon=True)

    def goes_on(self) -> None:
        """Lets the experiment work until it hands over its trial, or ends."""
        worker.write_output_to(folder_of(self.follow.folder, self.run.key) / worker.OUTPUT)
        worker.current = self.follow
        everywhere[:] = [self.follow]
        if self.trial:
            set_random_state(self._random, self.trial.device)
        else:
            worker.seed_all(self.run.seed)
            self._thread.start()
        self._go.release()
        self._back.acquire()
        if isinstance(self.error, RecordError):
            raise self.error

    def _work(self) -> None:
        self._go.acquire()
        try:
            self._to_its_end()
        except RecordError as error:
            self.error = error
        finally:
            self.ended = True
            self._back.release()

    def _to_its_end(self) -> None:
        try:
            instead.set(self._hand_over)
            self.follow.begin()
            result = self.experiment(self.run)
            if isinstance(result, Iterator):
                result = worker.drained(result, self.follow)
            self.follow.take(result)
            self.follow.end(StoppedEarly() if self.follow.stopped else None)
        except RecordError:
            raise
        except BaseException as error:
            self.follow.end(error)

    def _hand_over(self, trial: Trial, epochs: int) -> History:
        """What trial.run does in this thread, the first time."""
        instead.set(None)
        draw_orders(trial)
        self.trial, self.epochs = trial, epochs
        self._random = random_state(trial.device)
        self._back.release()
        self._go.acquire()
        if self.error:
            raise self.error
        return trial.history


def draw_orders(trial: Trial) -> None:
    """Has a trial draw what it draws before its first epoch: now, from its own random numbers."""
    trial.optimizer, trial.job  # noqa: B018, both are made when they are asked for
    held = resident(trial.sets.named("train"))
    if held:
        held.order(trial.device)


def _members(job: dict[str, Any], line: Connection) -> list[Member]:
    """The runs that nobody else has, each with its record begun."""
    folder, members = Path(job["folder"]), []
    experiment: Callable[[Run], Any] | None = None
    for parameters in job["group"]:
        key = Run(parameters).key
        run = Run(parameters).inside(folder_of(folder, key), job["seed"])
        held = claim(folder, key)
        if held is None or not worker.again(read(folder, key), job["retry_failed"]):
            continue
        if experiment is None:
            worker.write_output_to(folder_of(folder, key) / worker.OUTPUT)
            worker.settle(job)
            experiment = worker.received(job["experiment"]).unpacked()
        halving = Halving(**job["halving"]) if job["halving"] else None
        judge = worker.Judge(_Named(line, key), halving)  # type: ignore[arg-type]
        follow = Follow(run, folder, job["about"], judge, tuple(job["gpus"]), own_process=True)
        follow._claim = held
        follow.start()
        members.append(Member(run, follow, experiment))
    return members


class _Named:
    """A line on which each message says of which run it is."""

    def __init__(self, line: Connection, key: str) -> None:
        self.line, self.key = line, key
        self.recv_bytes = line.recv_bytes

    def send_bytes(self, message: bytes) -> None:
        _tell(self.line, run=self.key, **json.loads(message))


def _tell(line: Connection, **message: Any) -> None:
    line.send_bytes(json.dumps(message).encode())


def _done_together(members: list[Member], workers: int) -> str:
    """Takes all to their ends, and says how."""
    for member in members:
        member.goes_on()
        if member.ended and member.follow.record.state == "done":
            raise NotAsOne("the experiment does not call trial.run")
    members = [member for member in members if not member.ended]
    trials = [member.trial for member in members if member.trial]
    if len(trials) < 2:
        raise NotAsOne("the others failed")
    if len({member.epochs for member in members}) > 1:
        raise NotAsOne("their epochs differ")
    if reason := why_not(trials):
        raise NotAsOne(reason)
    together = Together(trials)
    with trials[0].settings():
        try:
            faster = times_as_fast(together, min(workers, len(trials)))
        except Exception as error:  # whatever PyTorch says that it cannot do for many at once
            raise NotAsOne(str(error).splitlines()[0].rstrip(".")) from error
        if faster <= AT_LEAST:
            raise NotAsOne(f"a step of all as one takes {1 / faster:.2g} × as long")
        _train(together, members)
    return f"are trained as one, a step {faster:.2g} × as fast"


def _train(together: Together, members: list[Member]) -> None:
    """Trains all to their ends, and lets each experiment go on when its trial has come to its."""
    owner = {id(member.trial): member for member in members}
    reacts = {
        id(member.trial): reactions([*member.trial.callbacks, member.follow], member.trial)
        for member in members
        if member.trial
    }

    def reach(moment: str, trials: list[Trial]) -> None:
        for trial in trials:
            try:
                reacts[id(trial)][moment]()
            except Exception as error:
                owner[id(trial)].error = error
                trial.stop()

    for trial in together.trials:
        trial.stopped = False
        _say_stepped(trial.optimizer)
    reach("on_start", together.trials)
    while together.trials and together.trials[0].epoch < members[0].epochs:
        reach("on_start_epoch", together.trials)
        together.epoch()
        reach("on_end_epoch", together.trials)
        ended = [trial for trial in together.trials if trial.stopped]
        together.drop_stopped()
        reach("on_end", ended)
        for trial in ended:
            owner[id(trial)].goes_on()
    together.end()
    reach("on_end", together.trials)
    for trial in together.trials:
        owner[id(trial)].goes_on()


def _say_stepped(optimizer: Optimizer) -> None:
    """Schedulers warn of an optimizer that has made no step; this one's are made beside it."""
    optimizer._opt_called = True  # type: ignore[attr-defined]
