"""A step of several ranks: each is simulated, and they wait for each other where they meet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import NamedTuple

from anydevice.plan.time.predict import Links, Simulation, stream_of
from anydevice.plan.time.rates import Rates
from anydevice.plan.time.work import Exchange, Op, Work

ROUNDS = 3

# Note [Ranks that meet]
# A pipeline's stage receives what another one computes, so the ranks that differ are simulated
# together. Each is a Simulation that stops where it has to know of another rank:
#
# - A send is reported to the other side: when it could begin. The sender continues.
# - A receive stops until that is known, and begins no sooner.
# - A collective of several of the ranks stops until all have come to it, and begins with the last.
#
# What a step takes is the time until the last of them is done, in the mean of rounds that overlap.
# A rank whose peers are not simulated has them come when it does.


class _Sent(NamedTuple):
    """What a receive stops for: that so much was sent before."""

    source: int
    to: int
    number: int


class _All(NamedTuple):
    """What a collective stops for: that so many have come to it."""

    who: object
    turn: int
    needed: int


Wanted = _Sent | _All


class Span(NamedTuple):
    """Something that ran: in which lane of a timeline, and its seconds in the last round."""

    lane: str
    begin: float
    end: float


def _lane(entry: Exchange) -> str:
    if entry.peer >= 0:
        return f"{entry.name} {'to' if entry.name == 'send' else 'from'} rank {entry.peer}"
    first, *others = entry.ranks or (0,)
    step = others[0] - first if others else 1
    return f"{len(entry.ranks)} ranks{f', every {step}th' if step > 1 else ''}"


class _Rank(Simulation):
    """One of them: `steps` is a generator that stops where another rank has to be known of."""

    def __init__(self, rank: int, all_of_them: _Meeting, rates: Rates, **free: bool) -> None:
        super().__init__(rates, 1, all_of_them.links, None, **free)
        self.rank, self.meeting = rank, all_of_them
        self.waited = 0.0
        self.lanes: dict[tuple[int, int], str] = {}  # of the streams of collectives
        self.spans: list[Span] = []

    def go(self, work: Work) -> Generator[Wanted, None, None]:
        self.begin(work)
        self.spans = []
        for entry in work:
            if isinstance(entry, Exchange):
                self.lanes[entry.device, stream_of(entry)] = _lane(entry)
            if isinstance(entry, Exchange) and self.meeting.is_shared(entry):
                yield from self._meet(entry)
            else:
                self.do(entry)

    def ran(self, queue: tuple[int, int], begin: float, end: float) -> None:
        if end > begin:
            self.spans.append(Span(self.lanes.get(queue, "computing"), begin, end))

    def _meet(self, entry: Exchange) -> Generator[Wanted, None, None]:
        ready = self.ready(entry)
        meeting = self.meeting
        if entry.name == "send":
            meeting.sent[self.rank, entry.peer].append(ready)
        elif entry.name == "recv":
            number = meeting.received[entry.peer, self.rank]
            meeting.received[entry.peer, self.rank] += 1
            if len(meeting.sent[entry.peer, self.rank]) <= number:
                yield _Sent(entry.peer, self.rank, number)
            posted = meeting.sent[entry.peer, self.rank]
            self.wait_until(entry, posted[number] if number < len(posted) else ready)
        else:
            key = entry.group, entry.ranks
            turn = meeting.turns[self.rank, key]
            meeting.turns[self.rank, key] += 1
            meeting.came[key, turn][self.rank] = ready
            if len(meeting.came[key, turn]) < len(meeting.present(entry)):
                yield _All(key, turn, len(meeting.present(entry)))
            self.wait_until(entry, max(meeting.came[key, turn].values()))
        self.do(entry)

    def _kernel_time(self, op: Op) -> float:
        return super()._kernel_time(op) / self.rates["together"]

    def wait_until(self, entry: Exchange, moment: float) -> None:
        self.waited += max(0.0, moment - self.ready(entry))
        self.hold(entry, moment)


@dataclass
class _Meeting:
    """What the ranks know of each other."""

    ranks: set[int]
    links: Links | None
    sent: dict[tuple[int, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    received: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    turns: dict[tuple[int, object], int] = field(default_factory=lambda: defaultdict(int))
    came: dict[tuple[object, int], dict[int, float]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def present(self, entry: Exchange) -> set[int]:
        return self.ranks.intersection(entry.ranks)

    def is_shared(self, entry: Exchange) -> bool:
        if entry.peer >= 0:
            return entry.peer in self.ranks
        return len(self.present(entry)) > 1

    def is_known(self, wanted: Wanted) -> bool:
        if isinstance(wanted, _Sent):
            return len(self.sent[wanted.source, wanted.to]) > wanted.number
        return len(self.came[wanted.who, wanted.turn]) >= wanted.needed


@dataclass(frozen=True)
class Together:
    """The time of a step of ranks that meet.

    Attributes:
        seconds: Of one step among many.
        waited: For each rank, the seconds of a step that it waits for others.
        busy: For each rank, the seconds in which its GPU computes.
        by_op: For each rank, the seconds of each kind of op.
        spans: For each rank, what ran in the last step, from its begin on.
    """

    seconds: float
    waited: dict[int, float]
    busy: dict[int, float]
    by_op: dict[int, dict[str, float]]
    spans: dict[int, list[Span]]


def together(works: dict[int, Work], rates: Rates, links: Links | None, **free: bool) -> Together:
    """Simulates the ranks' steps.

    Args:
        works: The step of each rank.
        rates: Of their cards.
        links: What is between them.
        free: What takes no time, as Simulation has it.
    """
    meeting = _Meeting(set(works), links)
    ranks = {rank: _Rank(rank, meeting, rates, **free) for rank in works}
    first = begun = 0.0
    for turn in range(ROUNDS):
        begun = max(each.end for each in ranks.values())
        _run({rank: ranks[rank].go(works[rank]) for rank in works}, meeting)
        if turn == 0:
            first = max(each.end for each in ranks.values())
    for each in ranks.values():
        each.rounds = ROUNDS
    return Together(
        seconds=(max(each.end for each in ranks.values()) - first) / (ROUNDS - 1),
        waited={rank: each.waited / ROUNDS for rank, each in ranks.items()},
        busy={rank: max(each.busy.values(), default=0.0) / ROUNDS for rank, each in ranks.items()},
        by_op={
            rank: {name: spent / ROUNDS for name, spent in each.by_op.items()}
            for rank, each in ranks.items()
        },
        spans={rank: _from(begun, each.spans) for rank, each in ranks.items()},
    )


def _from(begun: float, spans: list[Span]) -> list[Span]:
    """The same, from the moment at which the round before was done."""
    shifted = (Span(s.lane, max(0.0, s.begin - begun), s.end - begun) for s in spans)
    return [span for span in shifted if span.end > 0]


def _run(going: dict[int, Generator[Wanted, None, None]], meeting: _Meeting) -> None:
    """All to the end of a round. If all stop, the first continues as if the other had come."""
    wanted: dict[int, Wanted | None] = dict.fromkeys(going)
    while going:
        moved = False
        for rank in list(going):
            what = wanted[rank]
            if what is None or meeting.is_known(what):
                wanted[rank] = next(going[rank], None)
                moved = True
                if wanted[rank] is None:
                    del going[rank]
        if going and not moved:
            wanted[next(iter(going))] = None
