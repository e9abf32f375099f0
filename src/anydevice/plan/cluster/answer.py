"""What a plan of a cluster says: each role's memory, the step's time, and what limits it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

from anydevice.devices.catalogue import card
from anydevice.errors import UsageError
from anydevice.plan.answer import FITS, SOURCES, Plan, Verdict
from anydevice.plan.cluster.networks import Network
from anydevice.plan.cluster.timing import ClusterTime
from anydevice.plan.cluster.world import World
from anydevice.plan.compiling import Compiling
from anydevice.plan.hollow.run import HollowRun
from anydevice.tables import Shown, Table
from anydevice.text import UNSET, duration_text, size_text

LEAST_SHOWN = 0.005  # share of a step
COLLECTIVES_SHOWN = 10


@dataclass
class Role:
    """A rank that was played, and which others are like it.

    Attributes:
        rank: The rank.
        run: What it took.
        title: "rank 0", or "rank 16, stage 1".
    """

    rank: int
    run: HollowRun
    title: str

    @property
    def fits(self) -> bool:
        """Whether it surely fits its GPU."""
        return self.run.fits

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        run = self.run
        verdict = Verdict(run)
        return {
            "rank": self.rank,
            "title": self.title,
            "fits": self.fits,
            "verdict": run.verdict,
            "peak_bytes": {
                "tensors": run.tensors,
                "allocated": run.allocated,
                "reserved": run.reserved,
                "device": run.device_bytes,
            },
            "at_the_peak_bytes": verdict.holding(),
        }


@dataclass
class ClusterVerdict:
    """What a plan says about a cluster of one kind of GPU.

    Attributes:
        world: How many nodes and GPUs.
        roles: The ranks that were played; all others are like one of them.
        network: What is between them.
        replicas: How many ranks have separate batches.
        time: The predicted time of a step; None if fewer than two steps were run.
        notes: What was assumed, as sentences.
        compiling: What torch.compile changes, if that was asked for and can be known.
    """

    world: World
    roles: list[Role]
    network: Network
    replicas: int
    time: ClusterTime | None
    notes: list[str] = field(default_factory=list)
    compiling: Compiling | None = None

    @property
    def gpu(self) -> str:
        """The kind of GPU."""
        return self.roles[0].run.gpu

    @property
    def fits(self) -> bool:
        """Whether every role surely fits."""
        return all(role.fits for role in self.roles)

    @property
    def tightest(self) -> Role:
        """The role that takes the most memory."""
        return max(self.roles, key=lambda role: role.run.reserved)

    def cost(self, price: float, *, steps: int = 0, tokens: float = 0.0) -> float:
        """What so many steps or tokens cost at a price for a GPU's hour.

        >>> verdict.cost(2.50, tokens=1e12)  # doctest: +SKIP
        98_400.0
        """
        if self.time is None:
            raise UsageError("expected a plan with a time, got one of a single step: --steps 3.")
        if tokens:
            if not self.time.tokens:
                raise UsageError("expected a program whose network is given tokens, got another.")
            steps = round(tokens / self.time.tokens)
        return price * self.world.size * self.time.seconds * steps / 3600

    def sentences(self, price: float | None = None) -> list[str]:
        """The answer as sentences; with a GPU's price for an hour, what steps cost."""
        return _sentences(self, price)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "gpu": self.gpu,
            "fits": self.fits,
            "nodes": self.world.nodes,
            "gpus_per_node": self.world.gpus,
            "ranks": self.world.size,
            "replicas": self.replicas,
            "network": self.network.to_dict(),
            "tightest": self.tightest.rank,
            "roles": [role.to_dict() for role in self.roles],
            "time": self.time and self.time.to_dict(),
            "notes": self.notes,
            "compiling": self.compiling and self.compiling.to_dict(),
        }


@dataclass(repr=False)
class ClusterPlan(Shown):
    """What `ad.plan()` returns for a program of many ranks: a verdict for each kind of GPU.

    It shows itself as tables in a terminal and in a notebook.

    Attributes:
        program: The name of the program.
        verdicts: One ClusterVerdict for each kind of GPU, in the order that was asked for.

    Example:
        >>> answer = ad.plan(trial, "h100", gpus=8, nodes=2)  # doctest: +SKIP
        >>> answer.fits, answer["h100"].time.seconds  # doctest: +SKIP
        (True, 0.213)
    """

    program: str
    verdicts: list[ClusterVerdict] = field(default_factory=list)
    price: float | None = None  # of a GPU's hour

    @property
    def fits(self) -> bool:
        """Whether every role surely fits each kind of GPU."""
        return all(verdict.fits for verdict in self.verdicts)

    def __getitem__(self, gpu: str) -> ClusterVerdict:
        """The verdict for a kind of GPU.

        Raises:
            UsageError: If the plan does not cover this kind.
        """
        for verdict in self.verdicts:
            if verdict.gpu == card(gpu).kind:
                return verdict
        planned = ", ".join(verdict.gpu for verdict in self.verdicts)
        raise UsageError(f"expected one of the GPUs planned for, {planned}, got {gpu!r}.")

    def to_json(self) -> str:
        """The verdicts and the sources of what is assumed, as JSON."""
        data = {
            "program": self.program,
            "fits": self.fits,
            "clusters": [verdict.to_dict() for verdict in self.verdicts],
            "sources": SOURCES,
        }
        return json.dumps(data, indent=2)

    def _shown(self) -> Iterator[Table | Text | Shown]:
        for verdict in self.verdicts:
            yield _roles(self.program, verdict)
            yield Text("\n".join(_sentences(verdict, self.price)))
            if verdict.time:
                yield _time(verdict.time)
                if verdict.time.collectives:
                    yield _collectives(verdict.time)
            if verdict.compiling:
                yield verdict.compiling
        tightest = [Verdict(verdict.tightest.run) for verdict in self.verdicts]
        yield Plan(self.program, tightest).memory_table()


def _roles(program: str, verdict: ClusterVerdict) -> Table:
    figures = ("tensors", "allocated", "reserved", "device")
    table = Table(("role", "fits", *figures), right=figures)
    memory = size_text(verdict.roles[0].run.card.memory)
    table.title = f"{program}: {verdict.world}, {verdict.gpu} of {memory} each"
    for role in verdict.roles:
        run = role.run
        sizes = (run.tensors, run.allocated, run.reserved, run.device_bytes)
        table.rows.append((role.title, FITS[run.verdict], *map(size_text, sizes)))
    return table


def _sentences(verdict: ClusterVerdict, price: float | None) -> list[str]:
    sentences = [_margin(verdict)]
    time = verdict.time
    if time:
        spread = f"{duration_text(time.low)} to {duration_text(time.high)}"
        rates = [f"{duration_text(time.seconds)} per step ({spread})"]
        for what, count in (("samples", time.samples), ("tokens", time.tokens)):
            if count:
                whole, each = count / time.seconds, count / time.seconds / time.gpus
                rates.append(f"{_figure(whole)} {what}/s, {_figure(each)} on each GPU")
        rates.append(f"{time.utilisation:.1%} model FLOPs utilisation")
        sentences.append("; ".join(rates) + ".")
        sent = [f"{size_text(round(time.inside))} over {verdict.network.inside.title}"]
        if verdict.world.nodes > 1:
            sent.append(f"{size_text(round(time.between))} over {verdict.network.between.title}")
        sentences.append(f"Each step, a GPU sends {' and '.join(sent)}. Limit: {time.limit}.")
        if price:
            cost = verdict.cost(price, steps=1000)
            text = f"1,000 steps cost {cost:,.2f}"
            if time.tokens:
                text += f", a billion tokens {verdict.cost(price, tokens=1e9):,.2f}"
            sentences.append(f"{text}, at {price:g} for a GPU's hour.")
    return sentences + verdict.notes


def _margin(verdict: ClusterVerdict) -> str:
    role = verdict.tightest
    run = role.run
    if verdict.fits:
        return f"Fits; {role.title} is the tightest, with {size_text(run.margin)} to spare."
    if any(each.run.verdict == "no" for each in verdict.roles):
        return f"Does not fit: {role.title} takes {size_text(max(0, -run.margin))} too much."
    return (
        f"May fit: {role.title} takes {size_text(run.device_range[0])} to "
        f"{size_text(run.device_range[1])}, depending on the CUDA context (--context)."
    )


def _figure(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2f}"


def _time(time: ClusterTime) -> Table:
    table = Table(("of a step, on rank 0", "share"), right=("share",))
    for name, share in time.shares.items():
        if name == "computing" or share >= LEAST_SHOWN:
            waits = name if name == "computing" or " " in name else f"waiting for {name}"
            table.rows.append((waits, f"{share:.0%}"))
    return table


def _collectives(time: ClusterTime) -> Table:
    figures = ("ranks", "nodes", "times", "bytes", "time")
    table = Table(("collective", *figures, "by"), right=figures)
    for each in time.collectives[:COLLECTIVES_SHOWN]:
        counts = map(str, (each.ranks, each.nodes, each.count))
        spent = duration_text(each.seconds) if each.seconds else UNSET
        table.rows.append((each.name, *counts, size_text(each.bytes), spent, each.way))
    return table
