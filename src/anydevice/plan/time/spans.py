"""One step as a timeline: what the host and each stream do when, as the simulation has it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from anydevice.devices.catalogue import Card
from anydevice.plan.time.predict import Simulation
from anydevice.plan.time.rates import Rates
from anydevice.plan.time.work import Entry, Exchange, HostTime, Op, Transfer, Wait, Work

HOST = "host"
MOST = 1500  # spans of a lane; shorter ones than a pixel are drawn as one


@dataclass
class Span:
    """What one lane does for some time: `kind` says how it is drawn, `text` what it is."""

    begin: float
    end: float
    kind: str
    text: str
    more: int = 0  # others that are drawn with it

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.end - self.begin


@dataclass
class Timeline:
    """The spans of one step among many, by lane; seconds from when the host begins with it."""

    seconds: float
    lanes: dict[str, list[Span]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, in as few spans as a picture can show."""
        lanes = []
        for name, spans in self.lanes.items():
            drawn = merged(spans, self.seconds / MOST)
            rows = [[s.begin, s.end, s.kind, s.text, s.more] for s in drawn]
            lanes.append({"name": name, "spans": rows})
        return {"seconds": self.seconds, "lanes": lanes}


def step_timeline(work: Work, card: Card, *, gpus: int = 1) -> Timeline:
    """The third of three steps: the host may be ahead of the GPU, as it is in a loop.

    >>> step_timeline(work, card("t4")).lanes["cuda:0"][0].text  # doctest: +SKIP
    'addmm'
    """
    told = Telling(Rates(card), gpus)
    told.rounds = 3
    for _ in range(3):
        begin = told.host
        told._run(work)
    lanes: dict[str, list[Span]] = {HOST: []}
    for name, spans in sorted(told.lanes.items(), key=lambda lane: (lane[0] != HOST, lane[0])):
        later = [span for span in spans if span.end > begin]
        for span in later:
            span.begin, span.end = max(span.begin, begin) - begin, span.end - begin
        lanes[name] = later
    return Timeline(told.end - begin, {name: spans for name, spans in lanes.items() if spans})


class Telling(Simulation):
    """The simulation of a step that keeps what happened when."""

    def __init__(self, rates: Rates, gpus: int = 1) -> None:
        super().__init__(rates, gpus)
        self.lanes: dict[str, list[Span]] = defaultdict(list)
        self._entry: Entry | None = None

    def do(self, entry: Entry) -> None:
        """One entry; what the host's clock passes in it is the host's span, or two."""
        self._entry = entry
        before = self.host
        super().do(entry)
        if isinstance(entry, HostTime):
            self._tell(HOST, before, self.host, "data", _text(entry))
            return
        launched = self.host
        if isinstance(entry, Wait | Transfer):
            launched = min(self.host, before + self.rates["host_op"])
        self._tell(HOST, before, launched, "launch", _text(entry))
        self._tell(HOST, launched, self.host, "wait", f"waits for the GPU: {_text(entry)}")

    def _enqueue(
        self, queue: tuple[int, int], spent: float, reads: tuple[int, ...], writes: tuple[int, ...]
    ) -> float:
        end = super()._enqueue(queue, spent, reads, writes)
        entry = self._entry
        kind = {Transfer: "transfer", Exchange: "collective"}.get(type(entry), "kernel")
        self._tell(_lane(queue, entry), end - spent, end, kind, _text(entry))
        return end

    def _tell(self, lane: str, begin: float, end: float, kind: str, text: str) -> None:
        if end > begin:
            self.lanes[lane].append(Span(begin, end, kind, text))


def merged(spans: list[Span], least: float) -> list[Span]:
    """The spans, where those that would be narrower than `least` are one with their neighbours.

    >>> drawn = merged([Span(0, 1, "kernel", "mm"), Span(1, 3, "kernel", "add")], 5)
    >>> [(span.begin, span.end, span.text, span.more) for span in drawn]
    [(0, 3, 'add', 1)]
    """
    drawn: list[Span] = []
    longest = 0.0
    for span in spans:
        last = drawn[-1] if drawn else None
        near = last and last.kind == span.kind and span.begin - last.end < least
        if last and near and (span.seconds < least or last.seconds < least):
            if span.seconds > longest:
                last.text, longest = span.text, span.seconds
            last.end, last.more = max(last.end, span.end), last.more + 1
            continue
        drawn.append(Span(span.begin, span.end, span.kind, span.text))
        longest = span.seconds
    return drawn


def _lane(queue: tuple[int, int], entry: Entry | None) -> str:
    gpu, stream = queue
    if isinstance(entry, Exchange):
        return f"cuda:{gpu} collectives"
    return f"cuda:{gpu}" if not stream else f"cuda:{gpu} stream {stream}"


def _text(entry: Entry | None) -> str:
    if isinstance(entry, Wait):
        return entry.what
    if isinstance(entry, Transfer):
        return "copy" if min(entry.source, entry.destination) >= 0 else _copied(entry)
    return entry.name if isinstance(entry, Op | Exchange | HostTime) else ""


def _copied(moved: Transfer) -> str:
    return "copy to the GPU" if moved.destination >= 0 else "copy to the host"
