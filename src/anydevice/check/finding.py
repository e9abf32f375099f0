"""A finding: what is wrong, where, what it costs on each card, and the change that fixes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from anydevice.check.trace import NOWHERE, Seen, Site, Span, Trace
from anydevice.text import duration_text

Kind = Literal["error", "slow", "memory"]
KINDS: tuple[Kind, ...] = ("error", "slow", "memory")
Change = Callable[[list[Seen]], Iterable[Seen]]  # a step's work, as it is without the finding


@dataclass
class Finding:
    """One mistake or hidden cost.

    Attributes:
        rule: The rule that found it: `anydevice check --rules` lists them.
        kind: "error": it is wrong on a card, or trains something else than what was meant;
            "slow": it costs time; "memory": it costs memory.
        what: What is wrong, in a sentence.
        fix: The change that fixes it.
        site: The line of the program, with the calls that led there.
        count: How often it happens in a step, or in all if it is not of steps.
        per: "step" or "evaluation batch"; empty for what happens once.
        confidence: "certain", or "likely" where it may be what the program wants.
        seconds: What it costs in each step, by kind of GPU.
        together: The same once all other findings are fixed: while one wait is left, the others
            cost little.
        bytes: The memory that it costs.
        steps: In which share of the steps it happens.
        least: The share of a step on one of the cards below which it is not worth a line.
        least_seconds: The same in seconds.
        hint: Whether it is a change to consider and no mistake: it fails no check.
    """

    rule: str
    kind: Kind
    what: str
    fix: str
    site: Site = NOWHERE
    count: float = 1
    per: str = ""
    confidence: Literal["certain", "likely"] = "certain"
    seconds: dict[str, float] = field(default_factory=dict)
    together: dict[str, float] = field(default_factory=dict)
    bytes: int = 0
    steps: float = 1.0
    least: float = 0.0
    least_seconds: float = 0.0
    hint: bool = False
    change: Change | None = field(default=None, repr=False)
    span: Span | None = field(default=None, repr=False)

    @property
    def of_each_step(self) -> bool:
        """Whether it is a mistake of every step, which a change of the step fixes."""
        return self.change is not None and self.per == "step" and self.steps >= 1

    def share(self, step: dict[str, float]) -> float:
        """The largest share of a step that it costs on any of the cards."""
        costs = ((cost, step.get(gpu, 0.0)) for gpu, cost in self.seconds.items())
        return max((cost / whole for cost, whole in costs if whole), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "rule": self.rule,
            "kind": self.kind,
            "file": self.site.file,
            "line": self.site.line,
            "what": self.what,
            "fix": self.fix,
            "confidence": self.confidence,
            "count": self.count,
            "per": self.per,
            "share_of_steps": self.steps,
            "seconds_per_step": self.seconds,
            "seconds_with_all_others_fixed": self.together,
            "bytes": self.bytes,
            "chain": [[place.file, place.line, place.function] for place in self.site.frames],
            "library": str(self.site.library) if self.site.library else None,
        }


def hint_text(hint: Finding) -> str:
    """What could be saved, and what that costs."""
    word = "saves" if hint.kind == "slow" else "costs"
    costs = {gpu: s if hint.kind == "slow" else -s for gpu, s in hint.seconds.items()}
    times = ", ".join(f"{duration_text(max(0.0, s))} on {gpu}" for gpu, s in costs.items())
    place = f" at {hint.site}" if hint.site else ""
    price = f" It {word} {times} per step." if times else ""
    return f"Hint, {hint.rule}{place}: {hint.what} Try: {hint.fix}.{price}"


class Rule:
    """Looks for one kind of mistake; its docstring is its line in `anydevice check --rules`."""

    name: ClassVar[str]
    kind: ClassVar[Kind]

    def find(self, trace: Trace) -> Iterator[Finding]:
        """The findings in what a program did."""
        raise NotImplementedError

    def finding(self, what: str, fix: str, site: Site = NOWHERE, **more: object) -> Finding:
        """A finding of this rule."""
        return Finding(self.name, self.kind, what, fix, site, **more)  # type: ignore[arg-type]

    def of_line(self, line: Recurring, what: str, fix: str, change: Change) -> Finding:
        """A finding about what a line does in each step."""
        return self.finding(
            what,
            fix,
            line.site,
            count=line.count,
            per=line.per,
            steps=line.steps,
            span=line.span,
            change=change,
        )


@dataclass(frozen=True)
class Recurring:
    """What a line does in the steps, or in each batch of an evaluation.

    Attributes:
        seen: The entries in one step.
        count: How many there are in a step, on average over those that have any.
        steps: The share of the steps that have any.
        span: A step that has them.
    """

    site: Site
    seen: list[Seen]
    count: float
    per: str
    steps: float
    span: Span

    def is_new(self, one: Seen) -> bool:
        """Whether what is sent was made in the same step, or on the same line."""
        source = one.source
        if source is None or not source.made_by:
            return False
        return source.made_on == one.site.own or source.made_at >= self.span.begin > 0


Pair = tuple[Span, list[Seen]]

REPEATED = 3  # times that a line runs in a program of one step
OFTEN = 0.5  # of the steps: what is rarer costs little


def recurring(trace: Trace, wanted: Callable[[Seen], bool]) -> Iterator[Recurring]:
    """What the lines of a program do again in each step, or in each batch of an evaluation."""
    usual = trace.usual
    spans = trace.steps[1:] if len(trace.steps) > 1 else trace.steps
    found = set[tuple[object, object]]()
    for per, group in (("step", spans), ("evaluation batch", trace.evaluations)):
        for site, all_seen in trace.by_line(_within(trace, group, wanted)).items():
            key = site.own, site.library
            each = [(span, _of_site(trace, span, wanted, key)) for span in group]
            having = [(span, seen) for span, seen in each if seen]
            rare = len(having) < OFTEN * len(group) or _only_first(trace, group, having)
            once = len(group) == 1 and len(all_seen) < REPEATED
            if key in found or rare or once:
                continue
            found.add(key)
            preferred = [pair for pair in having if pair[0] == usual] or having[-1:]
            span, seen = preferred[0]
            yield Recurring(
                site, seen, len(all_seen) / len(having), per, len(having) / len(group), span
            )


def _only_first(trace: Trace, group: list[Span], having: list[Pair]) -> bool:
    """Whether it happens in the first step of an epoch alone, as `if i % 100 == 0` does.

    Epochs are cut short, so that this is rarer than it looks.
    """
    begun = [call.at for call in trace.named("iterate")]
    first = {span for span in group if any(span.begin <= at < span.end for at in begun)}
    return len(first) < len(group) and all(span in first for span, _ in having)


def _within(trace: Trace, spans: list[Span], wanted: Callable[[Seen], bool]) -> Iterator[Seen]:
    for span in spans:
        yield from filter(wanted, trace.work(span))


def _of_site(
    trace: Trace, span: Span, wanted: Callable[[Seen], bool], key: tuple[object, object]
) -> list[Seen]:
    seen = trace.work(span)
    return [one for one in seen if (one.site.own, one.site.library) == key and wanted(one)]


def without(dropped: Callable[[Seen], bool]) -> Change:
    """The change that leaves entries out."""
    return lambda step: [one for one in step if not dropped(one)]


def replacing(wanted: Callable[[Seen], bool], new: Callable[[Seen], Seen]) -> Change:
    """The change that makes others of some entries."""
    return lambda step: [new(one) if wanted(one) else one for one in step]


def at(line: Recurring, wanted: Callable[[Seen], bool]) -> Callable[[Seen], bool]:
    """Those of the wanted entries that are of this line."""
    site = line.site
    return lambda one: (one.site.own, one.site.library) == (site.own, site.library) and wanted(one)
