"""In the process of a group of runs: their trials are collected, trained as one, and given back.

Note [Experiments as threads]

An experiment is an ordinary function that calls trial.run() somewhere in its middle. To train the
trials of several experiments together, all of them have to be in the middle at the same time. So
each experiment is a thread, which stops inside trial.run() and hands over its trial (`_hand_over`).
The main thread trains all trials as one (`_train`), and then lets each experiment continue with its
trained trial.

Experiments are written to run alone in a process: they use the global random numbers, the standard
output, and the list of callbacks that listen to every trial. These exist once in a process, so
exactly one thread works at any time, the main thread or one experiment, and what is global is
switched over at each change. This holds:

- Only `Member.proceed` lets an experiment work, and only the main thread calls it. It sets the
  output, the callbacks (`everywhere`) and the random numbers to the member's before.
- `_go` is released by the main thread alone, `_back` by the experiment alone. Each is acquired by
  the other side at once, so neither is ever above 1.
- An experiment gives the turn back in two places: in `_hand_over`, and when it ends.
- `instead`, by which trial.run() hands over, is a context variable: each thread has one. It is
  reset at the first trial.run(), so a second one trains by itself, in the experiment's turn.
"""

import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from torch.optim import Optimizer

from anydevice.sweep.fuse.reasons import times_as_fast, why_not
from anydevice.sweep.fuse.training import Together, resident
from anydevice.sweep.grid import Run
from anydevice.sweep.processes import worker
from anydevice.sweep.processes.messages import DiskFailed, Job, Notice
from anydevice.sweep.records.claims import claim
from anydevice.sweep.records.records import RecordError, is_to_do, read
from anydevice.sweep.records.tracker import StoppedEarly, Tracker
from anydevice.train.callbacks.callback import everywhere, reactions
from anydevice.train.data.random_state import random_state, set_random_state
from anydevice.train.history import History
from anydevice.train.trial import Trial, instead

AT_LEAST = 1.0  # times as fast as one by one, or runs are not trained as one


class NotAsOne(Exception):  # noqa: N818, no error
    """The runs have to be done one by one; its text says why."""


def main(job: Job, line: Connection) -> int:
    """Does what runs of the group can be done as one; those that cannot are left as they were."""

    def notice(text: str) -> None:
        line.send_bytes(Notice(f"{len(job.runs)} runs {text}.").to_json())

    try:
        members = _members(job, line)
        if len(members) > 1:
            notice(_train_together(members, job.workers))
    except NotAsOne as error:
        notice(f"are done one by one, because {error}")
    except RecordError as error:
        line.send_bytes(DiskFailed(str(error)).to_json())
        return worker.DISK
    return 0


class MemberTracker(Tracker):
    """The record of one run of a group; the memory is the group's."""

    def peak_bytes(self) -> int | None:  # noqa: D102
        return None


class Member:
    """One run: its experiment, in a thread that works only during `proceed()`."""

    def __init__(self, run: Run, tracker: Tracker, experiment: Callable[[Run], Any]) -> None:
        self.run, self.tracker, self.experiment = run, tracker, experiment
        self.trial: Trial | None = None
        self.epochs = 0
        self.error: BaseException | None = None
        self.ended = False
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._work, daemon=True)

    def proceed(self) -> None:
        """Lets the experiment work until it hands over its trial, or ends."""
        worker.write_output_to(self.run.folder / worker.OUTPUT)
        everywhere[:] = [self.tracker]
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
            self.tracker.begin()
            result = self.experiment(self.run)
            if isinstance(result, Iterator):
                result = worker.collected(result, self.tracker)
            self.tracker.take(result)
            self.tracker.end(StoppedEarly() if self.tracker.stopped else None)
        except RecordError:
            raise
        except BaseException as error:
            self.tracker.end(error)

    def _hand_over(self, trial: Trial, epochs: int) -> History:
        """What trial.run does in this thread, the first time: waits until the trial is trained."""
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


def _members(job: Job, line: Connection) -> list[Member]:
    """The runs that no other process has, each with its record begun."""
    members = []
    experiment: Callable[[Run], Any] | None = None
    for run in (worker.run_inside(job, run) for run in job.runs):
        held = claim(job.folder, run.key)
        if held is None or not is_to_do(read(job.folder, run.key), job.retry_failed):
            continue
        if experiment is None:
            worker.write_output_to(run.folder / worker.OUTPUT)
            worker.take_resources(job.resources)
            experiment = job.experiment.unpacked()
        judge = worker.Judge(run.key, line, job.halving)
        tracker = MemberTracker(
            run, job.folder, job.about, judge, job.resources.gpus, own_process=True, held=held
        )
        worker.trackers[run.key] = tracker
        tracker.start()
        members.append(Member(run, tracker, experiment))
    return members


def _train_together(members: list[Member], workers: int) -> str:
    """Takes all to their ends, and says how."""
    for member in members:
        member.proceed()
        if member.ended and member.tracker.record.state == "done":
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
        except Exception as error:  # what PyTorch cannot do for many at once
            raise NotAsOne(str(error).splitlines()[0].rstrip(".")) from error
        if faster <= AT_LEAST:
            raise NotAsOne(f"a step of all as one takes {1 / faster:.2g} × as long")
        _train(together, members)
    return f"are trained as one, a step {faster:.2g} × as fast"


def _train(together: Together, members: list[Member]) -> None:
    """Trains all to their ends; each experiment continues as soon as its trial has ended."""
    owner = {id(member.trial): member for member in members}
    reacts = {
        id(member.trial): reactions([*member.trial.callbacks, member.tracker], member.trial)
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
            owner[id(trial)].proceed()
    together.end()
    reach("on_end", together.trials)
    for trial in together.trials:
        owner[id(trial)].proceed()


def _say_stepped(optimizer: Optimizer) -> None:
    """Schedulers warn of an optimizer that has made no step; this one steps elsewhere."""
    optimizer._opt_called = True  # type: ignore[attr-defined]
