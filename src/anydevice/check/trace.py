"""What a program did on virtual GPUs, in order: what the rules look at."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import FrameType
from typing import Any

from torch.nn.modules import module

from anydevice.frames import call_chain, is_own, line_text
from anydevice.plan.hollow.blocks import Block
from anydevice.plan.time.work import Entry, HostTime, Op, Transfer, Wait
from anydevice.virtual.events import HOST

MODULE = module.__file__
DEEPEST = 6  # frames of a call chain that are kept


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file, and the function that it is in."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return line_text(self.file, self.line)


@dataclass(frozen=True, slots=True)
class Site:
    """Where the program did something: its own frames, the innermost first."""

    frames: tuple[Place, ...] = ()
    library: Place | None = None  # the line of an installed package inside of them

    @classmethod
    def of(cls, frame: FrameType | None, stop: str = "") -> Site:
        """The site of a frame; `stop` is the file that called the program."""
        own, library = call_chain(frame, stop)
        return cls(tuple(map(_place, own[:DEEPEST])), _place(library) if library else None)

    @property
    def file(self) -> str:
        """The file of the user's own line."""
        return self.frames[0].file if self.frames else ""

    @property
    def line(self) -> int:
        """The user's own line."""
        return self.frames[0].line if self.frames else 0

    @property
    def own(self) -> tuple[str, int]:
        """File and line."""
        return self.file, self.line

    def __bool__(self) -> bool:
        return bool(self.frames or self.library)

    def __str__(self) -> str:
        return str(self.frames[0]) if self.frames else str(self.library or "")


def _place(frame: FrameType) -> Place:
    return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


NOWHERE = Site()


@dataclass(frozen=True, slots=True)
class Source:
    """The host's tensor that a copy to the GPU came from."""

    tensor: tuple[Any, ...]  # equal for the same tensor with the same values
    made_by: str = ""  # the factory that made it on the host, such as "zeros"
    made_at: int = 0  # how many entries of work came before
    made_on: tuple[str, int] = ("", 0)  # the line
    loaded: bool = False  # whether it is of a DataLoader's batch


@dataclass(frozen=True, slots=True)
class Seen:
    """An entry of the work, and what is known about it."""

    entry: Entry
    site: Site = NOWHERE
    op: str = ""  # the op that was running
    module: str = ""
    phase: str = "forward"  # or "backward", "optimizer", "data"
    shapes: tuple[tuple[int, ...], ...] = ()  # of the op's inputs
    dtype: str = ""
    caller: str = ""  # of a transfer or a wait: the file of the function that called the op
    source: Source | None = None

    @property
    def direct(self) -> bool:
        """Whether the program itself called the op, not a function of PyTorch."""
        return bool(self.caller) and is_own(self.caller)

    @property
    def of_module(self) -> bool:
        """Whether nn.Module.to() moves it."""
        return self.caller == MODULE

    @property
    def waits(self) -> bool:
        """Whether the host waits here until the GPU is done."""
        entry = self.entry
        if isinstance(entry, Transfer):
            return entry.destination == HOST and (entry.blocking or not entry.pinned)
        return isinstance(entry, Wait)

    @property
    def sent(self) -> Transfer | None:
        """The copy from the host to a GPU, if it is one."""
        entry = self.entry
        is_sent = isinstance(entry, Transfer) and entry.source == HOST
        return entry if is_sent else None  # type: ignore[return-value]

    @property
    def launched(self) -> Op | None:
        """The op with kernels, if it is one."""
        return self.entry if isinstance(self.entry, Op) and self.entry.kernels else None

    @property
    def launches_nothing(self) -> bool:
        """Whether it is an op without kernels, such as a view."""
        return isinstance(self.entry, Op) and not self.entry.kernels

    def changed(self, **changes: Any) -> Seen:
        """The same with another entry."""
        return replace(self, entry=replace(self.entry, **changes))


@dataclass
class Call:
    """A function of PyTorch's that the program called."""

    name: str
    site: Site
    at: int  # how many entries of work came before
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Span:
    """Entries from `begin` to before `end`: a step, or a pass of an evaluation."""

    begin: int
    end: int

    def __contains__(self, at: int) -> bool:
        return self.begin <= at < self.end


@dataclass
class Trace:
    """Everything that was seen.

    Attributes:
        seen: The entries of work, in order.
        calls: The calls that were noted, in order.
        steps: The complete steps; the first one creates all state.
        evaluations: Passes forward without gradients, outside of steps that train.
        unit: What a step is: Note [What is a step] in plan/hollow/steps.py.
        blocks: The GPU's memory, block by block.
        events: The allocator's event at the end of each step.
        facts: What the watch found out about networks and optimizers, by name.
        hollow: Whether the GPUs had no values.
    """

    seen: list[Seen] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    steps: list[Span] = field(default_factory=list)
    evaluations: list[Span] = field(default_factory=list)
    unit: str = "step"
    blocks: list[Block] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    hollow: bool = True

    @cached_property
    def usual(self) -> Span | None:
        """A step as most are: of the most frequent number of entries; the last such."""
        later = self.steps[1:] or self.steps
        if not later:
            return None
        lengths = Counter(span.end - span.begin for span in later)
        usual = max(lengths, key=lambda length: (lengths[length], -length))
        return [span for span in later if span.end - span.begin == usual][-1]

    def work(self, span: Span) -> list[Seen]:
        """What was done in a span."""
        return self.seen[span.begin : span.end]

    def named(self, *names: str) -> list[Call]:
        """The calls of these names."""
        return [call for call in self.calls if call.name in names]

    def called(self, name: str) -> Iterator[tuple[Site, float]]:
        """The lines that call it within steps, and in which share of the steps each does."""
        steps = self.steps[1:] or self.steps
        lines: dict[tuple[str, int], set[Span]] = defaultdict(set)
        sites = {}
        for call in self.named(name):
            for span in steps:
                if span.begin <= call.at < span.end or call.at == span.end == span.begin:
                    lines[call.site.own].add(span)
                    sites[call.site.own] = call.site
        for own, spans in lines.items():
            yield sites[own], len(spans) / len(steps)

    def sites(self) -> list[Site]:
        """Each place where something was done on a GPU."""
        return list(dict.fromkeys(one.site for one in self.seen if one.site))

    @cached_property
    def sent_again(self) -> set[Any]:
        """What was sent to a GPU with the same values in two steps, one after the other."""
        again = set[Any]()
        before = set[Any]()
        for span in self.steps:
            now = {one.source.tensor for one in self.work(span) if one.source}
            again |= now & before
            before = now
        return again

    def step_of(self, at: int) -> int | None:
        """The index of the step that this position is in."""
        return next((i for i, span in enumerate(self.steps) if at in span), None)

    def by_line(self, wanted: Iterable[Seen]) -> dict[Site, list[Seen]]:
        """Grouped by the line that did it: the user's, and the library's inside."""
        groups: dict[Any, list[Seen]] = defaultdict(list)
        for one in wanted:
            groups[one.site.own, one.site.library].append(one)
        return {group[0].site: group for group in groups.values()}

    def fixed_host_times(self) -> None:
        """The same line takes the same time in each step: the least that was measured.

        Times on the host are measured here, on a machine that may be busy. What is left after this
        is the same in all steps, so that a finding's cost has no noise of measurement.
        """
        least: dict[Any, float] = {}
        for one in self.seen:
            if isinstance(one.entry, HostTime):
                key = one.site.own, one.entry.name, one.shapes
                least[key] = min(one.entry.seconds, least.get(key, one.entry.seconds))
        for at, one in enumerate(self.seen):
            if isinstance(one.entry, HostTime):
                key = one.site.own, one.entry.name, one.shapes
                self.seen[at] = one.changed(seconds=least[key])


def in_phase(seen: Iterable[Seen], *phases: str) -> Iterator[Seen]:
    """Those of these phases."""
    return (one for one in seen if one.phase in phases)
