"""The ranks that are played: rank 0, and others where they differ, each in a process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from typing import Any, Generic, TypeVar

from anydevice.plan.cluster.objects import Awaited, Letter
from anydevice.plan.hollow.failures import CannotPlanError, DoesNotFitError
from anydevice.plan.hollow.isolated import LOOK, Child
from anydevice.plan.hollow.run import HollowRun

MOST = 64  # ranks that are played
Run = TypeVar("Run")


def unlike(rank: int, run: HollowRun) -> set[int]:
    """The ranks that are played because of this one: whom it talks to, and who differs."""
    peers = {exchange.peer for exchange in run.exchanges if exchange.peer >= 0}
    return peers | set(run.part.unlike) if rank == 0 else peers


@dataclass
class Roles(Generic[Run]):
    """Plays ranks until each has an answer; one from which an object is awaited is begun too.

    Args:
        play: What plays a rank, to be called in a separate process.
        others: Given a rank and its run: the ranks to be played because of it.
        shown: Show what rank 0 prints.
        waiting: What to say if it takes long.
    """

    play: Callable[[int], Run]
    others: Callable[[int, Run], Iterable[int]]
    shown: bool = False
    waiting: str = ""
    runs: dict[int, Run] = field(default_factory=dict)
    _children: dict[int, Child] = field(default_factory=dict)
    _letters: dict[str, bytes] = field(default_factory=dict)
    _awaited: dict[int, Awaited] = field(default_factory=dict)  # by who waits
    _open: ExitStack = field(default_factory=ExitStack)

    def all(self, first: tuple[int, ...] = (0,)) -> dict[int, Run]:
        """What each rank that had to be played takes, by rank; DoesNotFitError if one does not."""
        with self._open:
            for rank in first:
                self._begin(rank)
            while len(self.runs) < len(self._children):
                self._look()
        return dict(sorted(self.runs.items()))

    def _begin(self, rank: int) -> None:
        if rank in self._children:
            return
        if len(self._children) >= MOST:
            raise CannotPlanError(
                f"expected at most {MOST} ranks that differ, got more: they wait for objects from "
                "each other."
            )
        child = Child(
            partial(self.play, rank),
            shown=self.shown and rank == 0,
            waiting=self.waiting if rank == 0 else "",
            hear=partial(self._hear, rank),
        )
        self._children[rank] = self._open.enter_context(child)

    def _look(self) -> None:
        running = {rank: c for rank, c in self._children.items() if rank not in self.runs}
        wait([child.fileno() for child in running.values()], LOOK)
        for rank, child in running.items():
            if child.has_ended(0):
                self._ended(rank, child.result())
        stuck = set(self._awaited)
        if stuck and stuck >= {rank for rank in self._children if rank not in self.runs}:
            rank, letter = next(iter(self._awaited.items()))
            raise CannotPlanError(
                f"expected rank {letter.sender} to send an object to rank {rank}, got none: it "
                "came to the end of its steps before."
            )

    def _ended(self, rank: int, run: Run) -> None:
        self.runs[rank] = run
        for other in sorted(set(self.others(rank, run)) - set(self._children)):
            if len(self._children) < MOST:
                self._begin(other)

    def _hear(self, rank: int, told: Any) -> None:
        if isinstance(told, Letter):
            self._letters[told.key] = told.objects
            for other, letter in list(self._awaited.items()):
                if letter.key == told.key:
                    del self._awaited[other]
                    self._children[other].send(told.objects)
        elif isinstance(told, Awaited):
            if told.key in self._letters:
                self._children[rank].send(self._letters[told.key])
                return
            self._awaited[rank] = told
            self._begin(told.sender)


def rooms(
    play: Callable[[int, int], HollowRun],
    memory: int,
    low: int,
    high: int,
    ample: int,
    **options: Any,
) -> dict[int, HollowRun]:
    """The runs of all roles: on cards that are full, and if one does not fit, on ample ones.

    Args:
        play: Plays a rank on a card with so much memory for the program.
        memory: The card's.
        low: The smallest size of the context.
        high: The largest.
        ample: More memory than any program takes.
        options: Those of Roles.
    """
    try:
        return Roles(partial(_with_room, play, memory - high), unlike, **options).all()
    except DoesNotFitError:
        runs = Roles(partial(_with_room, play, ample), unlike, **options).all()
    for run in runs.values():
        if run.reserved + high > memory:
            run.verdict = "maybe" if run.reserved + low <= memory else "no"
    return runs


def _with_room(play: Callable[[int, int], HollowRun], room: int, rank: int) -> HollowRun:
    return play(rank, room)
