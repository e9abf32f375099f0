"""How long a step takes on a GPU: a simulation of the host that launches and the GPUs that run.

predict(recorder.step(-1), card("t4"), samples=128).sentence()
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from math import ceil, hypot
from typing import Any, Protocol

from anydevice.devices.catalogue import Card
from anydevice.plan.time.rates import Rates, causes
from anydevice.plan.time.work import Entry, Exchange, HostTime, Op, Product, Transfer, Wait, Work
from anydevice.text import duration_text
from anydevice.virtual.compiled.launches import GRAPH, REPLAY, REPLAYED, TRITON

# Tiles that cuBLAS and cuDNN cut a product into, and the share of the rate that each keeps, since
# it begins and ends; assumed.
TILES = (
    *((256, 128, 1.0), (128, 256, 1.0), (256, 64, 0.97), (64, 256, 0.97), (128, 128, 0.98)),
    *((128, 64, 0.95), (64, 128, 0.95), (64, 64, 0.9), (32, 32, 0.7)),
)
# Note [What feeds a multiprocessor]
# A tile of r × c uses each loaded number rc / (r + c) times. The quicker a multiprocessor computes,
# the more often each has to be used. An A100's, at 2.9 TFLOP/s, is fed by a tile of 128 × 128 but
# not by one of 64 × 64; a V100's in float32, at 0.2 TFLOP/s, by both. Later cards compute quicker,
# but read their operands in other ways, so that their largest tiles feed them too.
MOST_REUSE, FED_FLOPS = 57.0, 2.89e12
SHORTEST_SPLIT = 256  # of the summed dimension, if a product is split along it to fill the GPU
RAMP = 64  # of the summed dimension, until a tile's loads and products overlap
MATTERS = 0.002  # of a step's time: a cause whose slow ends cost less is left out of the range
LIBRARIES = ("convolution", "winograd", "attention", "recurrence")
ATTENTION_BACKWARD = 0.75
LATELY = 4  # collectives that may run while a kernel does
ENOUGH_FOR_MEMORY = 0.5  # of the multiprocessors load as fast as the memory can; assumed


@dataclass(frozen=True)
class Prediction:
    """The predicted time of a step on one kind of GPU.

    Attributes:
        card: The kind of GPU.
        seconds: Of one step among many.
        low: The time if all rates were at the quick ends of their ranges.
        high: The time if all were at the slow ends.
        samples: How many samples a step trains on, if known.
        waits_for_launches: The share of the time that would go away if launching took no time.
        waits_for_transfers: The same for transfers between host and GPU and between GPUs.
        waits_for_data: The same for fetching batches.
        calibrated: Whether rates measured on this machine were used.
        busy: Seconds in which the busiest GPU computes.
        by_op: Seconds of GPU time for each kind of op.
        waits_for_ranks: The share that would go away if collectives of a cluster took no time.
    """

    card: str
    seconds: float
    low: float
    high: float
    samples: int | None
    waits_for_launches: float
    waits_for_transfers: float
    waits_for_data: float
    calibrated: bool
    busy: float
    by_op: dict[str, float] = field(default_factory=dict, repr=False)
    waits_for_ranks: float = 0.0

    @property
    def samples_per_second(self) -> float | None:
        """How many samples are trained on per second; None if the batch size is unknown."""
        return self.samples / self.seconds if self.samples else None

    def sentence(self) -> str:
        """`12 ms per step (9 ms to 16 ms), 10,700 samples/s, 20% waiting for launches`."""
        expected, low, high = map(duration_text, (self.seconds, self.low, self.high))
        parts = [f"{expected} per step ({low} to {high})"]
        if rate := self.samples_per_second:
            parts.append(f"{rate:,.0f} samples/s" if rate > 10 else f"{rate:.1f} samples/s")
        waits: tuple[tuple[str, float], ...] = (
            ("launches", self.waits_for_launches),
            ("transfers", self.waits_for_transfers),
        )
        waits += (("data", self.waits_for_data), ("collectives", self.waits_for_ranks))
        for what, share in waits:
            if share >= 0.05:
                parts.append(f"{share:.0%} waiting for {what}")
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        names = ("card", "seconds", "low", "high", "samples", "samples_per_second", "busy")
        waits = ("waits_for_launches", "waits_for_transfers", "waits_for_data", "waits_for_ranks")
        return {name: getattr(self, name) for name in (*names, *waits, "calibrated")}


def predict(
    work: Work,
    card: Card,
    samples: int | None = None,
    data_seconds: float = 0.0,
    *,
    gpus: int = 1,
    synchronised: bool = False,
    measured: dict[str, float] | None = None,
    links: Links | None = None,
) -> Prediction:
    """The time that one step takes on a kind of GPU.

    Args:
        work: The step's ops, transfers, collectives and waits.
        card: The GPU, from the catalogue.
        samples: How many samples the step trains on.
        data_seconds: The time to fetch a batch, in addition to the fetching that the work has.
        gpus: How many GPUs take part in its collectives.
        synchronised: The step stands between two waits for the GPU, instead of among many steps.
        measured: Rates to use in place of those that `anydevice plan --calibrate` saved.
        links: What is between the ranks of a cluster.
    """
    rates = Rates(card, measured=measured)
    if data_seconds:
        work = Work([HostTime(data_seconds, "data"), *work])
    kinds = kinds_of(work)
    whole = Simulation(rates, gpus, links, kinds)
    seconds = whole.seconds(work, synchronised)

    def at(side: str, cause: str) -> float:
        there = Rates(card, side, rates.measured, cause)
        return Simulation(there, gpus, links, kinds).seconds(work, synchronised) - seconds

    slower = {cause: max(0.0, at("slow", cause)) for cause in relevant_causes(work)}
    quicker = [at("quick", cause) for cause, more in slower.items() if more > MATTERS * seconds]

    def share(**free: bool) -> float:
        without = Simulation(rates, gpus, links, kinds, **free).seconds(work, synchronised)
        return max(0.0, 1 - without / seconds) if seconds else 0.0

    return Prediction(
        card=card.kind,
        seconds=seconds,
        low=seconds - hypot(*(min(0.0, less) for less in quicker)),
        high=seconds + hypot(*slower.values()),
        samples=samples,
        waits_for_launches=share(free_launches=True),
        waits_for_transfers=share(free_transfers=True),
        waits_for_data=share(free_data=True),
        waits_for_ranks=share(free_exchanges=True) if links else 0.0,
        calibrated=bool(rates.measured),
        busy=max(whole.busy.values(), default=0.0) / whole.rounds,
        by_op={name: spent / whole.rounds for name, spent in whole.by_op.items()},
    )


# Note [The range]
# The constants' ends are not all reached at once: a card whose memory is slower than usual need not
# have a slower host. So constants are grouped by cause. The step is simulated with the constants of
# one cause at their quick ends, then at their slow ends, and the differences of all causes are
# added as the sides of a right angle are.


def relevant_causes(work: Work) -> list[str]:
    """The causes of errors that can matter to this work."""
    kinds: set[type] = {type(entry) for entry in work}
    needs: dict[str, set[type]] = {
        "data": {HostTime},
        "links": {Transfer, Exchange},
        "kernels": {Op},
        "together": {Exchange},
    }
    return [cause for cause in causes() if kinds & needs.get(cause, kinds)]


# Note [The simulated step]
# A training step is a host that launches kernels and GPUs that run them later. Which of the two is
# slower at each moment decides how long the step takes, so both are simulated, with one clock for
# the host and one for each stream of each GPU. The entries of a step are replayed in order:
#
# - An op costs the host its launch. Its kernels start when the host has launched them and the
#   stream is free (`_enqueue`). With several streams, or with collectives, they also wait for the
#   last writer of each storage that they touch. That stands for events and record_stream.
# - A transfer runs on its stream; the host waits for its end if it blocks or the memory is not
#   pinned.
# - A collective runs on a separate stream of its GPU, as NCCL's do, one for each group. Kernels
#   that run at the same time are slower: it takes multiprocessors, and memory's bandwidth.
# - A wait (`item()`, `synchronize()`) moves the host's clock to the time when the GPU is done.
# - The host's own work, such as fetching a batch, moves the host's clock only.
#
# In a loop, steps overlap: the host runs ahead. So three steps are simulated, and the time of one
# is the mean of the last two. What waiting for launches, transfers or data costs is the share of
# the time that goes away when they are free. The range comes from the quick and the slow ends of
# all rates.


# Note [What a compiled program costs the host]
# A call of a compiled graph checks its guards and passes AOTAutograd's wrapper (`host_graph`). Its
# wrapper then launches each kernel with little Python around it (`host_compiled`); views and
# allocations are part of that. With CUDA graphs it launches one graph (`host_replay`), and kernels
# follow each other without the host. A program's own Triton kernel is launched by Triton's Python
# (`host_triton`).


class Links(Protocol):
    """What is between the ranks of a cluster."""

    def seconds(self, exchange: Exchange, rates: Rates) -> float:
        """How long a collective takes, once all have come to it."""


def stream_of(collective: Exchange) -> int:
    """Its stream: one for each group, and for what is sent to or received from a rank."""
    between_two = collective.peer, collective.name if collective.peer >= 0 else ""
    return -1 - hash((collective.group, *between_two)) % 10**9


class Simulation:
    """A host that launches, and streams that run each kernel as soon as they can, in order."""

    def __init__(
        self,
        rates: Rates,
        gpus: int = 1,
        links: Links | None = None,
        kinds: Kinds | None = None,
        *,
        free_launches: bool = False,
        free_transfers: bool = False,
        free_data: bool = False,
        free_exchanges: bool = False,
    ) -> None:
        self.rates, self.gpus, self.links = rates, gpus, links
        self.free_exchanges = free_exchanges
        self.free_launches = free_launches
        self.free_transfers = free_transfers
        self.free_data = free_data
        self.host = 0.0
        self.free_at: dict[tuple[int, int], float] = defaultdict(float)  # by device and stream
        self.written_at: dict[int, float] = {}  # by storage
        self.busy: dict[int, float] = defaultdict(float)
        self.by_op: dict[str, float] = defaultdict(float)
        self.rounds = 1
        self.lately: deque[tuple[float, float]] = deque(maxlen=LATELY)  # the last collectives
        self._kinds = kinds
        self._times: dict[int, tuple[float, float]] = {}  # of a launch and its kernels, by kind

    def seconds(self, work: Work, synchronised: bool) -> float:
        """The time of one step: alone, or as one of many that overlap."""
        if synchronised:
            self._run(work)
            return self.end + self.rates["host_wait"]
        self.rounds = 3
        self._run(work)
        first = self.end
        self._run(work)
        self._run(work)
        return (self.end - first) / 2

    def _run(self, work: Work) -> None:
        self.begin(work)
        for entry in work:
            self.do(entry)

    def begin(self, work: Work) -> None:
        """The work's first entry comes next."""
        streams = {(op.device, op.stream) for op in work.ops}
        self.several = len(streams) > 1 or any(isinstance(e, Exchange) for e in work)
        self.sorted_lists: set[int] = set()
        if self._kinds is None or self._kinds.work is not work:
            self._kinds = kinds_of(work)
            self._times.clear()
        self._kind = self._kinds.of

    def do(self, entry: Entry) -> None:
        """One entry, after all before it."""
        if isinstance(entry, Op):
            self._launch(entry)
        elif isinstance(entry, Transfer):
            self._transfer(entry)
        elif isinstance(entry, Exchange):
            self._exchange(entry)
        elif isinstance(entry, Wait):
            self._wait(entry.device)
        elif not self.free_data:
            self.host += entry.seconds * self.rates["host_speed"]

    @property
    def end(self) -> float:
        """When all that was done so far is over."""
        return max([self.host, *self.free_at.values()])

    def _launch(self, op: Op) -> None:
        times = self._times.get(kind := self._kind[id(op)])
        if times is None:
            spent = self._kernel_time(op) if op.kernels else 0.0
            times = self._times[kind] = self._host_time(op), spent
        host, spent = times
        if not self.free_launches:
            self.host += host + self._sorting(op) if op.tensors > 1 else host
        if op.kernels:
            queue = op.device, op.stream
            if self.lately:
                spent += self._contended(queue, spent)
            self._enqueue(queue, spent, op.reads, op.writes)
            self.busy[op.device] += spent
            self.by_op[op.name] += spent

    def _contended(self, queue: tuple[int, int], spent: float) -> float:
        """What a kernel loses to the collectives that run at the same time."""
        begin = max(self.host, self.free_at[queue])
        shared = (min(begin + spent, end) - max(begin, start) for start, end in self.lately)
        return self.rates["contention"] * min(spent, sum(each for each in shared if each > 0))

    def _kernel_time(self, op: Op) -> float:
        return kernel_time(op, self.rates)

    def _host_time(self, op: Op) -> float:
        rates = self.rates
        if op.host:
            return self._host_time_compiled(op)
        if not op.kernels:
            return rates["host_view"]
        spent = rates["host_backward"] if op.backward else rates["host_op"]
        spent += rates["host_launch"] * (op.kernels - 1)
        if "norm" in op.name or any(product.kind in LIBRARIES for product in op.products):
            spent += rates["host_library"]
        return spent

    def _sorting(self, op: Op) -> float:
        """An optimizer sorts its lists once a step, not for each op."""
        if op.host or not op.kernels or op.tensors in self.sorted_lists:
            return 0.0
        self.sorted_lists.add(op.tensors)
        return self.rates["host_tensor"] * op.tensors

    def _host_time_compiled(self, op: Op) -> float:
        """In a compiled program: Note [What a compiled program costs the host]."""
        rates = self.rates
        if op.host == REPLAYED:
            return 0.0
        if op.host in (GRAPH, REPLAY):
            return rates[f"host_{op.host}"]
        if op.host == TRITON:
            return rates["host_triton"]
        if not op.kernels:
            return 0.0
        return rates["host_compiled"] + rates["host_launch"] * (op.kernels - 1)

    def ran(self, queue: tuple[int, int], begin: float, end: float) -> None:
        """Called for each kernel, transfer and collective."""

    def _enqueue(
        self, queue: tuple[int, int], spent: float, reads: tuple[int, ...], writes: tuple[int, ...]
    ) -> float:
        start = max(self.host, self.free_at[queue])
        if self.several:
            touched = (self.written_at.get(storage, 0.0) for storage in (*reads, *writes))
            start = max([start, *touched])
        end = self.free_at[queue] = start + spent
        self.ran(queue, start, end)
        if self.several:
            self.written_at.update(dict.fromkeys(writes, end))
        return end

    def _transfer(self, moved: Transfer) -> None:
        rates, devices = self.rates, (moved.source, moved.destination)
        if not self.free_launches:
            self.host += rates["host_op"]
        between = min(devices) >= 0
        rate = self._between_gpus() if between else self._bus(moved.pinned)
        spent = 0.0 if self.free_transfers else rates["transfer_start"] + moved.bytes / rate
        queue = (max(devices), moved.stream)
        if moved.blocking or (not between and not moved.pinned):
            self.host = self._enqueue(queue, spent, moved.reads, moved.writes)
            self.host += 0.0 if self.free_launches else rates["host_wait"]
            return
        end = self._enqueue(queue, spent, moved.reads, moved.writes)
        if between:  # both GPUs' streams take part
            self.free_at[moved.source, moved.stream] = end

    def _bus(self, pinned: bool) -> float:
        return self.rates.card.link * self.rates["pinned" if pinned else "pageable"]

    def _between_gpus(self) -> float:
        return (self.rates["nvlink"] or self.rates.card.link) * self.rates["between_gpus"]

    def _exchange(self, collective: Exchange) -> None:
        """On a separate stream for each group, as NCCL's; it begins after the current stream."""
        if not self.free_launches:
            self.host += self.rates["host_op"]
        own = (collective.device, collective.stream)
        self.hold(collective, self.free_at[own])
        spent = self._exchange_time(collective)
        queue = (collective.device, stream_of(collective))
        end = self._enqueue(queue, spent, collective.reads, collective.writes)
        if spent:
            self.lately.append((end - spent, end))
        if collective.waits:
            self.free_at[own] = max(self.free_at[own], end)

    def ready(self, collective: Exchange) -> float:
        """When this rank could begin it."""
        queue = (collective.device, stream_of(collective))
        own = self.free_at[collective.device, collective.stream]
        touched = (self.written_at.get(storage, 0.0) for storage in collective.reads)
        return max([self.host, self.free_at[queue], own, *touched])

    def hold(self, collective: Exchange, moment: float) -> None:
        """It begins no sooner than this."""
        queue = (collective.device, stream_of(collective))
        self.free_at[queue] = max(self.free_at[queue], moment)

    def _exchange_time(self, collective: Exchange) -> float:
        if self.links and collective.ranks:
            return 0.0 if self.free_exchanges else self.links.seconds(collective, self.rates)
        passes = collective.bytes * (self.gpus - 1) / max(1, self.gpus)
        if self.free_transfers or not passes:
            return 0.0
        return passes / self._between_gpus() + self.rates["transfer_start"]

    def _wait(self, device: int) -> None:
        queues = [free for (index, _), free in self.free_at.items() if index == device]
        self.host = max([self.host, *queues])
        if not self.free_launches:
            self.host += self.rates["host_wait"]


@dataclass(frozen=True)
class Kinds:
    """The ops of a work by what their times depend on: the layers of a network are often alike.

    Attributes:
        work: It keeps its ops, so that no other object gets the id of one.
        of: The kind of each op, by its id.
    """

    work: Work
    of: dict[int, int]


def kinds_of(work: Work) -> Kinds:
    """The kind of each op, as a number."""
    seen: dict[tuple[object, ...], int] = {}
    found: dict[int, int] = {}
    for op in work.ops:
        if id(op) not in found:
            kernel = op.unit, op.products, op.bytes, op.kernels, op.aligned, op.layout, op.fill
            found[id(op)] = seen.setdefault((op.name, op.backward, op.host, *kernel), len(seen))
    return Kinds(work, found)


def kernel_time(op: Op, rates: Rates) -> float:
    """Seconds that an op's kernels take on the card: arithmetic or memory, whichever is longer."""
    arithmetic = sum(product_time(product, op, rates) for product in op.products)
    bandwidth = rates.card.bandwidth * rates["bandwidth"]
    if op.bytes < rates.card.l2_cache / 2:
        bandwidth *= rates["l2"]
    if op.fill < ENOUGH_FOR_MEMORY:
        bandwidth *= op.fill / ENOUGH_FOR_MEMORY
    spent = max(arithmetic, op.bytes / bandwidth, op.kernels * rates["shortest_kernel"])
    if op.layout and rates.on_tensor_cores(op.unit):
        spent += op.layout / (rates.card.bandwidth * rates["bandwidth"] * rates["layout"])
    return spent * rates["versions"] + op.kernels * rates["between_kernels"]


def product_time(product: Product, op: Op, rates: Rates) -> float:
    """Seconds of arithmetic, by how well the product's shape fills the card."""
    if not product.flops:  # of no rows
        return 0.0
    rate = rates.arithmetic(op.unit)
    if product.kind == "attention":
        rate *= rates["attention"] * (ATTENTION_BACKWARD if op.backward else 1.0)
        return product.flops / rate
    if product.kind == "kernel":
        return product.flops / (rate * rates["triton"] * op.fill)
    on_tensor_cores = rates.on_tensor_cores(op.unit)
    if product.kind in ("convolution", "winograd"):
        rate *= rates["convolution" if on_tensor_cores else "convolution_float32"]
        if product.kind == "winograd" and not on_tensor_cores:
            rate *= rates["winograd"]
    elif product.kind == "recurrence":
        rate *= rates["recurrence"]
    elif not op.aligned and on_tensor_cores:
        rate *= rates["unaligned"]
    card = rates.card
    peak = card.peak.get(op.unit if on_tensor_cores else "float32", card.peak["float32"])
    reuse = MOST_REUSE * min(1.0, peak / card.multiprocessors / FED_FLOPS)
    return product.flops / (rate * filled(product, card.multiprocessors, reuse))


def filled(product: Product, multiprocessors: int, reuse: float = MOST_REUSE) -> float:
    """The share of the card that a product keeps busy: whole tiles, in whole waves of them.

    `reuse`: how often a loaded number has to be used.
    """
    return max(_filled(product, multiprocessors, reuse, *tile) for tile in TILES)


def _filled(
    p: Product, multiprocessors: int, reuse: float, rows: int, columns: int, keeps: float
) -> float:
    tiles = p.batch * ceil(p.m / rows) * ceil(p.n / columns)
    splits = max(1, min(multiprocessors // tiles, p.k // SHORTEST_SPLIT))
    waves = ceil(tiles * splits / multiprocessors)
    in_tiles = p.batch * p.m * p.n / (tiles * rows * columns)
    in_waves = tiles * splits / (waves * multiprocessors)
    length = p.k / splits
    fed = min(1.0, rows * columns / (rows + columns) / reuse)
    return keeps * fed * in_tiles * in_waves * length / (length + RAMP)
