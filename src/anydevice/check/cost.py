"""What a finding costs: the simulated step as it is, minus the step without the finding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from anydevice.check.finding import Change, Finding
from anydevice.check.trace import Seen, Span, Trace
from anydevice.devices.catalogue import Card
from anydevice.plan.time.predict import Simulation
from anydevice.plan.time.rates import Rates
from anydevice.plan.time.work import HostTime, Work

NOTHING = 1e-8  # seconds: sums of other orders differ in their last digits
Beside = dict[tuple[str, int], tuple[float, int]]  # by line: seconds for a batch, and workers


def seconds(work: Sequence[Seen], card: Card, gpus: int = 1, beside: Beside | None = None) -> float:
    """How long this work takes as one step among many: at least as long as one worker for it.

    How many workers help depends on the machine: with several, they count as quick enough.
    """
    simulated = Simulation(Rates(card), gpus).seconds(Work([one.entry for one in work]), False)
    fetched = [one.site.own for one in work if is_fetched(one)]
    each = ((beside or {}).get(own, (0.0, 1)) for own in fetched)
    return max(simulated, sum(spent for spent, workers in each if workers == 1))


def is_fetched(one: Seen) -> bool:
    """Whether it is the fetch of a batch."""
    return isinstance(one.entry, HostTime) and one.entry.name == "data"


def _cost(now: float, fixed: float) -> float:
    return now - fixed if abs(now - fixed) > NOTHING else 0.0


class Prices:
    """The costs of a trace's findings on some cards."""

    def __init__(self, trace: Trace, cards: Sequence[Card], gpus: int = 1) -> None:
        self.trace, self.cards, self.gpus = trace, cards, gpus
        self._beside: Beside = trace.facts.get("beside", {})
        self._spans: dict[tuple[Span, str], float] = {}

    @cached_property
    def step(self) -> dict[str, float]:
        """Seconds of a usual step, by kind of GPU; empty if there is none."""
        usual = self.trace.usual
        return {} if usual is None else {c.kind: self._of(usual, c) for c in self.cards}

    def set(self, findings: Iterable[Finding]) -> None:
        """Fills in what each finding costs."""
        for finding in findings:
            span = finding.span or self.trace.usual
            if finding.change is None or span is None:
                continue
            changed = list(finding.change(self.trace.work(span)))
            finding.seconds = {
                card.kind: _cost(self._of(span, card), self._seconds(changed, card)) * finding.steps
                for card in self.cards
            }

    def set_together(self, findings: Sequence[Finding], fixed: dict[str, float]) -> None:
        """Fills in what each finding of the usual step costs once all others are fixed."""
        usual = self.trace.usual
        if usual is None:
            return
        for finding in findings:
            if not finding.of_each_step:
                continue
            others = [other for other in findings if other is not finding]
            left = self.fixed(others)
            finding.together = {gpu: _cost(left[gpu], fixed[gpu]) for gpu in left}

    def fixed(self, findings: Iterable[Finding]) -> dict[str, float]:
        """Seconds of the usual step after all of its findings are fixed.

        What makes the step slower on a card, even after all others, is left as it is there.
        """
        usual = self.trace.usual
        if usual is None:
            return {}
        changes = [
            (finding.seconds, finding.change)
            for finding in findings
            if finding.change is not None and finding.per != "evaluation batch"
        ]
        return {
            card.kind: self._fixed_on(card, self.trace.work(usual), changes) for card in self.cards
        }

    def _fixed_on(
        self, card: Card, work: list[Seen], changes: Sequence[tuple[dict[str, float], Change]]
    ) -> float:
        doubtful = []
        for saved, change in changes:
            if saved.get(card.kind, 0.0) < 0:
                doubtful.append(change)
            else:
                work = list(change(work))
        time = self._seconds(work, card)
        for change in doubtful:
            changed = list(change(work))
            if (quicker := self._seconds(changed, card)) < time:
                work, time = changed, quicker
        return time

    def _seconds(self, work: Sequence[Seen], card: Card) -> float:
        return seconds(work, card, self.gpus, self._beside)

    def _of(self, span: Span, card: Card) -> float:
        if (span, card.kind) not in self._spans:
            self._spans[span, card.kind] = self._seconds(self.trace.work(span), card)
        return self._spans[span, card.kind]
