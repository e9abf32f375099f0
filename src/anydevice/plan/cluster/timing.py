"""The time of a step of a cluster: shares, samples and tokens per second, utilisation, bytes."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from math import hypot
from typing import Any

from anydevice.devices.catalogue import Card
from anydevice.plan.cluster.networks import Network
from anydevice.plan.cluster.together import Span, together
from anydevice.plan.hollow.run import HollowRun
from anydevice.plan.time.predict import MATTERS, relevant_causes
from anydevice.plan.time.rates import Rates
from anydevice.plan.time.work import Exchange, Work

FREE = {
    "collectives": "free_exchanges",
    "launches": "free_launches",
    "transfers": "free_transfers",
    "data": "free_data",
}


@dataclass(frozen=True)
class Collective:
    """Collectives of one kind in one group, in a step of rank 0.

    Attributes:
        name: What NCCL does: "all_gather".
        ranks: How many take part.
        nodes: Over how many nodes they are spread.
        count: How often.
        bytes: Of what is gathered or reduced, in all.
        seconds: In all, if nothing else runs.
        way: The algorithm and the protocol of the largest.
    """

    name: str
    ranks: int
    nodes: int
    count: int
    bytes: int
    seconds: float
    way: str

    @property
    def bus(self) -> float:
        """Bytes a second; what links carry, by nccl-tests, may be up to twice that."""
        return self.bytes / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class ClusterTime:
    """The predicted time of a step.

    Attributes:
        seconds: Of one step among many.
        low: If all rates were at the quick ends of their ranges.
        high: If all were at the slow ends.
        gpus: How many there are.
        samples: That a step trains on, on all ranks; None if unknown.
        tokens: The same for tokens.
        shares: The parts of a step, of rank 0: computing, waiting for collectives, and so on.
        flops: Of the products of a step on all ranks, without what is computed again.
        peak: What all GPUs could do in that time, by the data sheet.
        inside: Bytes that a GPU sends over its node's links in a step.
        between: Bytes that it sends over the network.
        collectives: Of rank 0, by kind and group.
        busy: Seconds of computing in a step, for each rank that was played.
        waited: Seconds of a step that it waits for other ranks.
        by_op: Rank 0's seconds for each kind of op.
        spans: For each rank that was played, what ran in a step, and when.
    """

    seconds: float
    low: float
    high: float
    gpus: int
    samples: float | None
    tokens: float | None
    shares: dict[str, float]
    flops: float
    peak: float
    inside: float
    between: float
    collectives: list[Collective]
    busy: dict[int, float]
    waited: dict[int, float]
    by_op: dict[str, float] = field(default_factory=dict, repr=False)
    spans: dict[int, list[Span]] = field(default_factory=dict, repr=False)

    @property
    def utilisation(self) -> float:
        """Model FLOPs utilisation: FLOPs of the model over what the GPUs could do."""
        return self.flops / (self.seconds * self.peak) if self.seconds and self.peak else 0.0

    @property
    def limit(self) -> str:
        """What takes most of the step besides computing, if that is much; else computing."""
        others = {name: share for name, share in self.shares.items() if name != "computing"}
        name = max(others, key=lambda name: others[name], default="")
        return name if name and others[name] > 0.25 else "computing"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        rate = 1 / self.seconds if self.seconds else 0.0
        return {
            "seconds": self.seconds,
            "low": self.low,
            "high": self.high,
            "samples": self.samples,
            "samples_per_second": self.samples and self.samples * rate,
            "tokens": self.tokens,
            "tokens_per_second": self.tokens and self.tokens * rate,
            "tokens_per_second_per_gpu": self.tokens and self.tokens * rate / self.gpus,
            "utilisation": self.utilisation,
            "shares": self.shares,
            "limit": self.limit,
            "bytes_inside_nodes": self.inside,
            "bytes_between_nodes": self.between,
            "busy_seconds": self.busy,
            "waited_seconds": self.waited,
            "collectives": [vars(each) for each in self.collectives],
        }


def timed(
    runs: dict[int, HollowRun], card: Card, network: Network, gpus: int
) -> ClusterTime | None:
    """The time of a step of these ranks; None if none was recorded.

    Args:
        runs: The ranks that were played.
        card: Each GPU.
        network: What is between them.
        gpus: How many there are.
    """
    works = {rank: _work(run) for rank, run in runs.items()}
    if not all(works.values()):
        return None
    known: dict[int, Work] = {rank: work for rank, work in works.items() if work}
    rates = Rates(card)
    whole = together(known, rates, network)
    seconds, everything = whole.seconds, Work([e for work in known.values() for e in work])

    def at(side: str, cause: str) -> float:
        return together(known, Rates(card, side, rates.measured, cause), network).seconds - seconds

    slower = {cause: max(0.0, at("slow", cause)) for cause in relevant_causes(everything)}
    quicker = [at("quick", cause) for cause, more in slower.items() if more > MATTERS * seconds]
    main = known[min(known)]
    run, shares = runs[min(runs)], dict[str, float]()
    for name, free in FREE.items():
        without = together(known, rates, network, **{free: True}).seconds
        shares[name] = max(0.0, 1 - without / seconds)
    alone = together({min(known): main}, rates, network).seconds
    if len(known) > 1 and any(whole.waited.values()):
        shares["waiting for other ranks"] = max(0.0, 1 - alone / seconds)
    computing = min(1.0, whole.busy[min(known)] / seconds)  # several streams' kernels add up
    shares = {"computing": computing, **shares}
    samples = run.step_samples or run.samples
    tokens, replicas = run.tokens, run.part.replicas
    parts = replicas * run.part.texts
    carried = [network.carried(entry) for entry in _exchanges(main)]
    unit = _unit(main)
    return ClusterTime(
        seconds=seconds,
        low=seconds - hypot(*(min(0.0, less) for less in quicker)),
        high=seconds + hypot(*slower.values()),
        gpus=gpus,
        samples=samples and samples * replicas,
        tokens=samples and tokens and tokens / (run.samples or 1) * samples * parts,
        shares=shares,
        flops=sum(3 * _forward(work) for work in known.values()) / len(known) * gpus,
        peak=card.peak.get(unit, card.peak["float32"]) * gpus,
        inside=sum(near for near, _ in carried),
        between=sum(far for _, far in carried),
        collectives=_collectives(main, network, rates),
        busy=whole.busy,
        waited=whole.waited,
        by_op=whole.by_op[min(known)],
        spans=whole.spans,
    )


def _work(run: HollowRun) -> Work | None:
    """The step's; one that accumulates has its passes as often as it does."""
    if not run.parts:
        return run.work
    return Work([entry for work, count in run.parts for _ in range(count) for entry in work])


def _exchanges(work: Work) -> list[Exchange]:
    return [entry for entry in work if isinstance(entry, Exchange)]


def _forward(work: Work) -> float:
    """The FLOPs of the passes forward; a training step has three times as many."""
    return sum(p.flops for op in work.ops if not op.backward for p in op.products)


def _unit(work: Work) -> str:
    """The arithmetic of most products."""
    flops: Counter[str] = Counter()
    for op in work.ops:
        flops[op.unit] += int(sum(product.flops for product in op.products))
    return flops.most_common(1)[0][0] if flops else "float32"


def _collectives(work: Work, network: Network, rates: Rates) -> list[Collective]:
    grouped = defaultdict(list)
    for entry in _exchanges(work):
        grouped[entry.name, entry.ranks if entry.peer < 0 else (0, entry.peer)].append(entry)
    found = []
    for (name, ranks), entries in grouped.items():
        ways = {entry.size: network.chosen(entry, rates) for entry in entries}
        way = ways[max(ways)]
        found.append(
            Collective(
                name=name,
                ranks=len(ranks),
                nodes=network.sides(ranks)[0] if ranks else 1,
                count=len(entries),
                bytes=sum(entry.size for entry in entries),
                seconds=sum(ways[entry.size].seconds for entry in entries),
                way=f"{way.algorithm} {way.protocol}".strip(),
            )
        )
    return sorted(found, key=lambda each: -each.seconds)
