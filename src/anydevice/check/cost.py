"""What a finding costs: the simulated step as it is, minus the step without the finding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from anydevice.check.finding import Finding
from anydevice.check.trace import Seen, Span, Trace
from anydevice.devices.catalogue import Card
from anydevice.plan.time.predict import Simulation
from anydevice.plan.time.rates import Rates
from anydevice.plan.time.work import Work


def seconds(work: Iterable[Seen], card: Card, gpus: int = 1) -> float:
    """How long this work takes as one step among many."""
    return Simulation(Rates(card), gpus).seconds(Work([one.entry for one in work]), False)


class Prices:
    """The costs of a trace's findings on some cards."""

    def __init__(self, trace: Trace, cards: Sequence[Card], gpus: int = 1) -> None:
        self.trace, self.cards, self.gpus = trace, cards, gpus
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
                card.kind: (self._of(span, card) - seconds(changed, card, self.gpus))
                * finding.steps
                for card in self.cards
            }

    def set_together(self, findings: Sequence[Finding], fixed: dict[str, float]) -> None:
        """Fills in what each finding of the usual step costs once all others are fixed."""
        usual = self.trace.usual
        if usual is None:
            return
        for finding in findings:
            if finding.change is None or finding.per != "step" or finding.steps < 1:
                continue
            others = [other for other in findings if other is not finding]
            left = self.fixed(others)
            finding.together = {gpu: left[gpu] - fixed[gpu] for gpu in left}

    def fixed(self, findings: Iterable[Finding]) -> dict[str, float]:
        """Seconds of the usual step after all of its findings are fixed."""
        usual = self.trace.usual
        if usual is None:
            return {}
        work = self.trace.work(usual)
        for finding in findings:
            if finding.change is not None and finding.per != "evaluation batch":
                work = list(finding.change(work))
        return {card.kind: seconds(work, card, self.gpus) for card in self.cards}

    def _of(self, span: Span, card: Card) -> float:
        if (span, card.kind) not in self._spans:
            self._spans[span, card.kind] = seconds(self.trace.work(span), card, self.gpus)
        return self._spans[span, card.kind]
