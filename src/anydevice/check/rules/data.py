"""How batches come."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any

from torch.utils.data.distributed import DistributedSampler

from anydevice.check.cost import is_fetched
from anydevice.check.finding import Finding, Recurring, Rule, at, recurring, replacing
from anydevice.check.trace import Trace
from anydevice.check.workers import generators
from anydevice.plan.time.work import HostTime
from anydevice.text import duration_text

LONG = 4e-3  # seconds for a batch: less is not worth a worker
FROM_A_WORKER = 1e-4  # seconds to take a batch that is ready


class WaitsForData(Rule):
    """The GPU waits for the next batch: there are no workers that make it, or too few."""

    name = "waits-for-data"
    kind = "slow"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each line that fetches from a loader."""
        alone = {c.site.own for c in trace.named("iterate") if not _workers(c.info["loader"])}
        for line in recurring(trace, is_fetched):
            made = self._alone(line) if line.site.own in alone else self._by_one(line, trace)
            if made is not None:
                made.confidence, made.least = "likely", 0.1
                yield made

    def _alone(self, line: Recurring) -> Finding | None:
        seconds = max(o.entry.seconds for o in line.seen if isinstance(o.entry, HostTime))
        if seconds < LONG:
            return None
        workers = min(16, max(2, ceil(seconds / 5e-3)))
        return self.of_line(
            line,
            f"The next batch is made by the process that trains, in {duration_text(seconds)} "
            "(measured here).",
            f"DataLoader(…, num_workers={workers}, persistent_workers=True)",
            replacing(at(line, is_fetched), lambda o: o.changed(seconds=FROM_A_WORKER)),
        )

    def _by_one(self, line: Recurring, trace: Trace) -> Finding | None:
        seconds, workers = trace.facts.get("beside", {}).get(line.site.own, (0.0, 0))
        if workers != 1 or seconds < LONG:
            return None
        finding = self.of_line(
            line,
            f"The one worker makes a batch in {duration_text(seconds)} (measured here), and the "
            "step waits for it.",
            "DataLoader(…, num_workers=4) or more: the time for a batch, divided by that of a step",
            replacing(at(line, is_fetched), lambda o: o.changed(name="ready")),
        )
        finding.least_seconds = LONG / 4
        return finding


def _workers(loader: Any) -> int:
    return int(getattr(loader, "num_workers", 0))


class SameRandomNumbers(Rule):
    """Each worker of a DataLoader has a copy of the same random generator."""

    name = "same-random-numbers"
    kind = "error"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each data set whose generator is copied to several workers."""
        seen = set[int]()
        for call in trace.named("iterate"):
            loader = call.info["loader"]
            if id(loader) in seen or id(loader) not in trace.facts.get("draw_the_same", ()):
                continue
            seen.add(id(loader))
            if name := _generator(loader.dataset):
                yield self.finding(
                    f"{type(loader.dataset).__name__}.{name} is copied to "
                    f"{loader.num_workers} workers, which then draw the same random numbers.",
                    "make it in each worker: DataLoader(…, worker_init_fn=…), with "
                    "torch.utils.data.get_worker_info().seed",
                    call.site,
                )


def _generator(dataset: Any) -> str:
    """The name of a generator that __getitem__ uses."""
    fetch = getattr(type(dataset), "__getitem__", None)
    used = getattr(getattr(fetch, "__code__", None), "co_names", ())
    return next((name for name in generators(dataset) if name in used), "")


class EpochNotSet(Rule):
    """A DistributedSampler gives the same order in each epoch, since set_epoch is not called."""

    name = "epoch-not-set"
    kind = "error"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each sampler that has begun a second epoch so."""
        told = {call.info["sampler"] for call in trace.named("set_epoch")}
        begun: dict[int, int] = {}
        for call in trace.named("iterate"):
            sampler = call.info["sampler"]
            if not isinstance(sampler, DistributedSampler) or not sampler.shuffle:
                continue
            begun[id(sampler)] = begun.get(id(sampler), 0) + 1
            if begun[id(sampler)] == 2 and id(sampler) not in told:
                yield self.finding(
                    "The second epoch has the same order as the first: the sampler was not given "
                    "its number.",
                    "loader.sampler.set_epoch(epoch) at the start of each epoch",
                    call.site,
                )
