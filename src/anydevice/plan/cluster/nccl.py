"""How long NCCL takes for a collective, and by which algorithm and protocol it does it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import log2
from typing import Any

# Note [NCCL's choice]
# NCCL predicts the time of a collective for each algorithm (ring, tree, NVLS, PAT) and protocol
# (LL, LL128, Simple) as latency + bytes / bandwidth, and takes the quickest. Its rules and tables
# are published (NVIDIA/nccl, src/graph/tuning.cc), and are what this file follows:
#
# - A ring passes (n - 1) parts on, one after the other, twice for an all-reduce. It uses all links
#   at once, and its latency grows with the number of ranks.
# - A tree's latency grows with the logarithm of the number of nodes.
# - NVLS has the switch reduce and multiply data: within a node of Hopper or later. NVLS trees use
#   it within each node, and a tree between them.
# - PAT gathers and scatters in a logarithmic number of steps, for one rank on each node.
# - LL and LL128 send a flag with the data, which saves waiting and costs bandwidth; Simple waits.
#
# Seconds and bytes are used here; NCCL's tables are in microseconds and GB/s.

US, GB = 1e-6, 1e9
LL, LL128, SIMPLE = "LL", "LL128", "Simple"
PROTOCOLS = (LL, LL128, SIMPLE)
BASE = {
    "ring": {LL: 6.6, LL128: 14.0, SIMPLE: 8.4},
    "tree": {LL: 6.8, LL128: 14.0, SIMPLE: 8.4},
    "nvls": {SIMPLE: 8.4},
    "nvls tree": {SIMPLE: 8.4},
    "pat": {SIMPLE: 8.0},
}
STEP = {  # the latency of a step, by what it goes over
    ("ring", "nvlink"): {LL: 0.6, LL128: 1.9, SIMPLE: 3.4},
    ("ring", "pci"): {LL: 1.0, LL128: 2.5, SIMPLE: 5.7},
    ("ring", "net"): {LL: 2.7, LL128: 4.0, SIMPLE: 14.0},
    ("tree", "nvlink"): {LL: 0.6, LL128: 1.25, SIMPLE: 4.0},
    ("tree", "pci"): {LL: 1.0, LL128: 1.9, SIMPLE: 4.0},
    ("tree", "net"): {LL: 5.0, LL128: 8.5, SIMPLE: 14.0},
    ("nvls", "nvlink"): {SIMPLE: 25.0},
    ("nvls tree", "nvlink"): {SIMPLE: 25.0},
    ("nvls tree", "net"): {SIMPLE: 20.9},
    ("pat", "net"): {SIMPLE: 14.0},
}
GENERATIONS = (7, 8, 9, 10)  # Volta, Ampere, Hopper, Blackwell: what a channel or a GPU carries
MOST_LL = {7: (39.0, 39.0, 20.4), 8: (87.7, 22.5, 19.0), 9: (141.0, 45.0, 35.0)}  # by nodes
MOST_LL[10] = (282.0, 90.0, 70.0)
RING_LL128 = {7: 20.0, 8: 20.0, 9: 36.7, 10: 73.4}  # a channel
TREE_LL128 = {7: 20.0, 8: 20.0, 9: 36.7, 10: 73.4}
TREE = {7: (26.5, 18.5, 10.0), 8: (24.0, 23.6, 17.8), 9: (38.7, 41.4, 36.0)}
TREE[10] = (77.4, 82.8, 72.0)
NVLS = {9: 0.93, 10: 0.83}  # the share of the links that it reaches; NCCL expects 0.85, 0.74
OF_ALL_REDUCE = 5 / 6  # of NVLS's bandwidth
# Trees reach less for middle sizes: for 64 B, 128 B and so on, doubling.
IN_TREES = {
    LL: "1 1 1 1 .9 .8 .7 .7 .7 .7 .6 .5 .5 .5 .6 .7 .8 .9 .9 .9 1 1",
    LL128: "1 1 1 1 1 .9 .8 .8 .8 .7 .6 .6 .6 .5 .6 .6 .7 .7 .8 .9 .9 1",
    SIMPLE: ".9 .9 .9 .9 .9 .9 .9 .8 .7 .6 .6 .5 .5 .5 .5 .6 .7 .8 .8 .9 .9 .9",
}
CORRECTIONS = {name: [float(each) for each in row.split()] for name, row in IN_TREES.items()}
PEERS = 1.0  # microseconds for each peer of an all-to-all, whose sends start in a row


@dataclass(frozen=True)
class Path:
    """What a group's collectives have."""

    ranks: int
    nodes: int
    inside: float  # bytes a second of a GPU
    between: float  # of those of the group on a node, together
    one_nic: float
    channels: int
    hardware: str  # "nvlink" or "pci"
    latency: float  # times that of InfiniBand
    multicast: bool
    generation: int

    @property
    def each(self) -> float:
        """Ranks on a node."""
        return self.ranks / self.nodes

    @property
    def bus(self) -> float:
        """What all rings carry together, in GB/s."""
        inside = self.inside if self.each > 1 else float("inf")
        return (inside if self.nodes == 1 else min(inside, self.between)) / GB

    def most(self, table: dict[int, tuple[float, float, float]]) -> float:
        """A limit by generation and nodes: one, two, more."""
        return float(self.of_generation(table)[min(self.nodes, 3) - 1])

    def of_generation(self, table: dict[int, Any]) -> Any:
        """The entry of the newest generation that is not newer than this card."""
        known = [g for g in sorted(table) if g <= self.generation]
        return table[known[-1] if known else min(table)]


@dataclass(frozen=True)
class Choice:
    """The algorithm and the protocol that NCCL takes, and the time."""

    seconds: float
    algorithm: str
    protocol: str


@lru_cache(4096)
def choice(kind: str, size: int, path: Path) -> Choice:
    """The quickest way to do a collective on so many bytes."""
    if path.ranks < 2:
        return Choice(0.0, "none", "")
    if kind in ("send", "recv", "all_to_all", "gather", "scatter"):
        return _between_pairs(kind, size, path)
    ways = _reduced(size, path) if kind == "all_reduce" else _others(kind, size, path)
    return min(ways, key=lambda way: way.seconds)


def _reduced(size: int, path: Path) -> Iterator[Choice]:
    for protocol in PROTOCOLS:
        yield _ring("all_reduce", size, path, protocol)
        yield _tree(size, path, protocol)
    if path.multicast and path.generation >= min(NVLS) and path.each > 1:
        yield _nvls(size, path)


def _others(kind: str, size: int, path: Path) -> Iterator[Choice]:
    for protocol in PROTOCOLS:
        yield _ring(kind, size, path, protocol)
    if kind in ("all_gather", "reduce_scatter") and path.each == 1 and path.nodes > 1:
        latency = BASE["pat"][SIMPLE] + log2(path.nodes) * _step("pat", "net", SIMPLE, path) / 3.5
        yield _made("pat", SIMPLE, latency + path.ranks * 2.8, size, path.bus * 0.75)


def _ring(kind: str, size: int, path: Path, protocol: str) -> Choice:
    n, nodes, bus = path.ranks, path.nodes, path.bus
    if protocol == LL:
        bus = min(bus * 0.5, path.most(MOST_LL))
    elif protocol == LL128:
        share = 0.7 if path.each < 2 and nodes > 1 else 0.92
        bus = min(bus * share, path.channels * path.of_generation(RING_LL128))
    steps, crossings = n, nodes
    if kind == "all_reduce":
        steps, crossings = 2 * (n - 1), 2 * nodes
    elif kind in ("all_gather", "reduce_scatter"):
        steps, crossings = n - 1, nodes - 1
    crossings = crossings if nodes > 1 else 0
    near, far = (_step("ring", over, protocol, path) for over in (path.hardware, "net"))
    latency = BASE["ring"][protocol] + (steps - crossings) * near + crossings * far
    if (
        kind == "all_reduce"
        and protocol == SIMPLE
        and nodes > 1
        and size / (path.channels * n) >= 64
    ):
        latency *= 1.9 if size < 2e9 else 1.4  # rings reach a plateau between nodes
    return _made("ring", protocol, latency, size, bus * n / steps)


def _tree(size: int, path: Path, protocol: str) -> Choice:
    bus = min(path.bus * 0.92, path.channels * path.most(TREE))
    if protocol == LL:
        bus = min(bus / 3.8, path.most(MOST_LL))
    elif protocol == LL128:
        share = 7 / 9 if path.nodes == 1 else 120 / 128
        bus = min(bus * share, path.channels * path.of_generation(TREE_LL128))
    place = int(log2(size >> 6)) if size >= 128 else 0
    row = CORRECTIONS[protocol]
    bus *= row[place] if place < len(row) else 1.0
    near, far = (_step("tree", over, protocol, path) for over in (path.hardware, "net"))
    latency = 2 * ((path.each - 1) * near + log2(path.nodes) * far)
    return _made("tree", protocol, BASE["tree"][protocol] + latency, size, bus / 2)


def _nvls(size: int, path: Path) -> Choice:
    name = "nvls" if path.nodes == 1 else "nvls tree"
    inside = path.inside / GB * path.of_generation(NVLS) * OF_ALL_REDUCE
    latency = BASE[name][SIMPLE] + _step(name, "nvlink", SIMPLE, path)
    if path.nodes > 1:
        latency += 2 * log2(path.nodes) * _step(name, "net", SIMPLE, path)
        inside = min(inside, path.between / GB * path.each / (path.each + 1) / 2 * 1.15)
    return _made(name, SIMPLE, latency, size, inside)


def _between_pairs(kind: str, size: int, path: Path) -> Choice:
    """What is sent from one rank to another, several at once."""
    n, each = path.ranks, path.each
    if kind in ("send", "recv"):
        rate = path.inside if path.nodes == 1 else path.one_nic
        hops = _step("ring", "net" if path.nodes > 1 else path.hardware, SIMPLE, path)
        return _made("pairs", SIMPLE, BASE["ring"][SIMPLE] + hops, size, rate / GB)
    near, far = size * (each - 1) / n, size * (n - each) / n
    if kind in ("gather", "scatter"):  # by one rank's links
        slow = near / path.inside + far / path.one_nic
    else:
        slow = max(near / path.inside, far * each / path.between if path.nodes > 1 else 0.0)
    latency = BASE["ring"][SIMPLE] + (n - 1) * PEERS * (path.latency if path.nodes > 1 else 1.0)
    return Choice(latency * US + slow, "pairs", SIMPLE)


def _step(algorithm: str, hardware: str, protocol: str, path: Path) -> float:
    figure = STEP[algorithm, hardware][protocol]
    return figure * path.latency if hardware == "net" else figure


def _made(algorithm: str, protocol: str, latency: float, size: int, rate: float) -> Choice:
    return Choice(latency * US + size / (rate * GB), algorithm, protocol)


def sent(kind: str, size: int, ranks: int) -> float:
    """The bytes that each rank sends to others at least: nccl-tests' bus bandwidth counts them."""
    if kind in ("send", "broadcast", "reduce"):
        return float(size)
    if kind == "recv" or ranks < 2:
        return 0.0
    share = (ranks - 1) / ranks
    return size * share * (2 if kind == "all_reduce" else 1)
