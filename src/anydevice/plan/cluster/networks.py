"""What is between GPUs, within a node and between nodes: networks.toml, or a file of the user's."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from anydevice.devices.catalogue import Card
from anydevice.errors import UsageError, did_you_mean
from anydevice.plan.cluster import nccl
from anydevice.plan.time.rates import Rates
from anydevice.plan.time.work import Exchange

ANY_CARD = ("pcie4", "ethernet-25")


@dataclass(frozen=True)
class Inside:
    """The links within a node; networks.toml says what each figure is."""

    name: str
    title: str
    bandwidth: float
    channels: int
    hardware: str
    source: str = ""
    multicast: bool = False
    domain: int = 0


@dataclass(frozen=True)
class Between:
    """The network between nodes; networks.toml says what each figure is."""

    name: str
    title: str
    nic: float
    nics: int
    reaches: float = 0.9
    latency: float = 1.0
    source: str = ""


@dataclass(frozen=True)
class Network:
    """The links of a cluster whose nodes have so many GPUs."""

    inside: Inside
    between: Between
    gpus: int
    generation: int  # of the card, by which NCCL knows what its channels carry

    @property
    def domain(self) -> int:
        """How many GPUs are joined without the network."""
        return max(self.gpus, self.inside.domain)

    def sides(self, ranks: tuple[int, ...]) -> tuple[int, int]:
        """Over how many nodes the ranks are spread, and the most on one of them."""
        nodes = [rank // self.domain for rank in ranks]
        return len(set(nodes)), max(map(nodes.count, set(nodes)))

    def path(self, ranks: tuple[int, ...], reached: float = 1.0) -> nccl.Path:
        """What a group's collectives have, as NCCL sees it."""
        nodes, most = self.sides(ranks)
        nics = max(1.0, self.between.nics * min(1.0, most / self.gpus))
        return nccl.Path(
            ranks=len(ranks),
            nodes=nodes,
            inside=self.inside.bandwidth * reached,
            between=self.between.nic * self.between.reaches * nics * reached,
            one_nic=self.between.nic * self.between.reaches * reached,
            channels=self.inside.channels,
            hardware=self.inside.hardware,
            latency=self.between.latency,
            multicast=self.inside.multicast,
            generation=self.generation,
        )

    def chosen(self, exchange: Exchange, rates: Rates) -> nccl.Choice:
        """How NCCL would do it, and how long it takes."""
        ranks = exchange.ranks
        if exchange.peer >= 0:
            ranks = (min(ranks), exchange.peer) if exchange.peer != min(ranks) else ranks[:2]
        return nccl.choice(exchange.name, exchange.size, self.path(ranks, rates["nccl"]))

    def seconds(self, exchange: Exchange, rates: Rates) -> float:
        """How long it takes, once all have come to it."""
        return self.chosen(exchange, rates).seconds

    def carried(self, exchange: Exchange) -> tuple[float, float]:
        """The bytes that a GPU sends over the links of its node, and over the network."""
        n = len(exchange.ranks)
        nodes, most = self.sides(exchange.ranks)
        sent = nccl.sent(exchange.name, exchange.size, n)
        if nodes == 1 or n < 2:
            return sent, 0.0
        if exchange.name == "all_to_all" or exchange.peer >= 0:
            away = (n - most) / max(1, n - 1)
            return sent * (1 - away), sent * away
        return sent, sent / most  # a ring leaves a node once

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "inside": {f.name: getattr(self.inside, f.name) for f in fields(Inside)},
            "between": {f.name: getattr(self.between, f.name) for f in fields(Between)},
        }


@cache
def catalogue() -> Mapping[str, Any]:
    """networks.toml."""
    table: Any = tomllib.loads(files(__package__).joinpath("networks.toml").read_text("utf-8"))
    inside = {name: Inside(name=name, **entry) for name, entry in table["inside"].items()}
    between = {name: Between(name=name, **entry) for name, entry in table["between"].items()}
    return {"inside": inside, "between": between, "usual": table["usual"]}


def network(card: Card, gpus: int, given: str | None = None) -> Network:
    """The network of nodes with so many of these cards.

    Args:
        card: The kind of GPU.
        gpus: How many a node has.
        given: Names from the catalogue, joined by commas, or a TOML file; by default what is usual
            for the card.

    Raises:
        UsageError: If there is no such network.
    """
    known = catalogue()
    usual = known["usual"].get(card.kind, ANY_CARD)
    found = Network(known["inside"][usual[0]], known["between"][usual[1]], gpus, card.capability[0])
    if given is None:
        return found
    if given.endswith(".toml"):
        return _from_file(found, Path(given))
    for name in filter(None, given.split(",")):
        found = _with(found, name.strip())
    return found


def _with(network: Network, name: str) -> Network:
    known = catalogue()
    for side in ("inside", "between"):
        if name in known[side]:
            return replace(network, **{side: known[side][name]})
    names = [*known["inside"], *known["between"]]
    hint = did_you_mean(name, names, f"there are {', '.join(names)}.")
    raise UsageError(
        f"expected a network in the catalogue or a .toml file as --network, got {name!r}: {hint}"
    )


def _from_file(network: Network, path: Path) -> Network:
    """A file with `inside` and `between`: a name each, or a table of figures."""
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"expected a network in {path}, got {error}.") from None
    if odd := set(table) - {"inside", "between"}:
        raise UsageError(f"expected inside and between in {path}, got {', '.join(sorted(odd))}.")
    for side, kind in (("inside", Inside), ("between", Between)):
        entry = table.get(side)
        if isinstance(entry, str):
            network = _with(network, entry)
        elif isinstance(entry, dict):
            known = {field.name for field in fields(kind)}
            if odd := set(entry) - known:
                raise UsageError(
                    f"expected figures that networks have in {path}, got {', '.join(sorted(odd))}: "
                    f"[{side}] may have {', '.join(sorted(known))}."
                )
            named = {"name": path.stem, "title": path.stem, "source": str(path)} | entry
            network = replace(network, **{side: replace(getattr(network, side), **named)})
    return network
