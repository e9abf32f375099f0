"""How long collectives take, against figures of nccl-tests that others published.

python -m benchmarks.collectives [--json]

Most figures are large messages' bus bandwidth: what nccl-tests prints as busbw. Those marked * were
seen before the constants were set; the others were looked up afterwards.
"""

import json
import sys
from dataclasses import dataclass, replace
from statistics import median

from anydevice.devices.catalogue import card
from anydevice.plan.cluster import nccl
from anydevice.plan.cluster.networks import Network, network
from anydevice.plan.time.rates import Rates
from anydevice.plan.time.work import Exchange
from anydevice.tables import Table, show

GB, MIB, GIB = 1e9, 1 << 20, 1 << 30
TESTS, NCCL = "NVIDIA/nccl-tests issue", "NVIDIA/nccl issue"


@dataclass(frozen=True)
class Published:
    """A figure: GB/s of bus bandwidth, or microseconds."""

    gpu: str
    nodes: int
    gpus: int
    kind: str
    size: int
    figure: float
    source: str
    unit: str = "GB/s"
    network: str | None = None
    links: float = 1.0  # the share of the usual links that the card has
    nics: int | None = None
    seen: bool = True

    def among(self) -> Network:
        """What is between these GPUs."""
        found = network(card(self.gpu), self.gpus, self.network)
        inside = replace(found.inside, bandwidth=found.inside.bandwidth * self.links)
        between = replace(found.between, nics=self.nics or found.between.nics)
        return replace(found, inside=inside, between=between)

    def predicted(self, side: str = "value") -> float:
        """The same figure, by the plan's model."""
        ranks = tuple(range(self.nodes * self.gpus))
        entry = Exchange(self.kind, 0, 0.0, ranks=ranks, size=self.size)
        rates = Rates(card(self.gpu), side, {}, "links")
        seconds = self.among().seconds(entry, rates)
        if self.unit == "µs":
            return seconds * 1e6
        return nccl.sent(self.kind, self.size, len(ranks)) / seconds / GB


AR, AG = "all_reduce", "all_gather"
FIGURES = (
    Published("h100", 1, 8, AR, 8 * GIB, 480, f"{TESTS} 212: the peak of 8 GPUs by NVLS"),
    Published("h100", 1, 8, AR, 256 * MIB, 437, f"{TESTS} 212: 250 GB/s of algbw"),
    Published("h100", 1, 8, AG, 8 * GIB, 370, f"{TESTS} 212: other operations than all-reduce"),
    Published("h100", 1, 8, AG, 8 * GIB, 360, f"{TESTS} 326"),
    Published("h100", 1, 8, AR, 4 * GIB, 476, f"{TESTS} 290", seen=False),
    Published("h200", 1, 8, AR, 4 * GIB, 475, f"{TESTS} 272", seen=False),
    Published("b200", 1, 8, AR, 8 * GIB, 830, f"{NCCL} 1807", seen=False),
    Published("h100", 1, 8, AR, 8 * GIB, 215, f"{NCCL} 1374: H800, 8 of 18 links", links=8 / 18),
    Published("a100-80gb", 1, 8, AR, GIB, 200, f"{TESTS} 149"),
    Published("a100-40gb", 1, 8, AR, GIB, 230.8, f"{NCCL} 527: p4d.24xlarge", seen=False),
    Published("a100-80gb", 1, 2, AR, 8 * GIB, 208, f"{TESTS} 178: 12 links", seen=False),
    Published("a100-40gb", 2, 8, AR, GIB, 57.2, f"{NCCL} 527: EFA", network="efa-p4d", seen=False),
    Published("a100-40gb", 3, 8, AR, GIB, 31.8, f"{NCCL} 527: EFA", network="efa-p4d", seen=False),
    Published("a100-40gb", 4, 8, AR, GIB, 29.6, f"{NCCL} 527: EFA", network="efa-p4d", seen=False),
    Published(
        "a100-40gb", 3, 8, AR, 128 * MIB, 96, f"{TESTS} 119: 4 × HDR, the peak", nics=4, seen=False
    ),
    Published(
        "a100-40gb",
        *(2, 8, AR, GIB, 75, f"{NCCL} 495: RoCE, 8 × 100 Gb/s"),
        network="roce-100",
        nics=8,
        seen=False,
    ),
    Published("h100", 32, 8, AR, 2 * GIB, 340, f"{NCCL} 1218"),
    Published("h100", 32, 8, AG, 2 * GIB, 200, f"{NCCL} 1218"),
    Published(
        "h100", 2, 8, AG, 8 * GIB, 376, f"{TESTS} 290: 46 to 48 GB/s for each card", seen=False
    ),
    Published("h100", 1, 8, AR, 4, 12.5, "deepseek-ai/DeepEP issue 303: H20", "µs", seen=False),
    Published("h100", 1, 8, AR, 4096, 16.7, "deepseek-ai/DeepEP issue 303: H20", "µs", seen=False),
    Published("h100", 2, 8, AR, 4, 47.5, f"{NCCL} 1244: H20", "µs", seen=False),
)


def rows() -> list[dict[str, object]]:
    """Each figure, and what is predicted."""
    found = []
    for each in FIGURES:
        predicted = each.predicted()
        ends = sorted(each.predicted(side) for side in ("quick", "slow"))
        found.append(
            {
                "gpus": f"{each.nodes} × {each.gpus} {each.gpu}",
                "collective": each.kind,
                "bytes": each.size,
                "published": each.figure,
                "predicted": predicted,
                "unit": each.unit,
                "error": predicted / each.figure - 1,
                "in_range": ends[0] <= each.figure <= ends[1],
                "seen": each.seen,
                "source": each.source,
            }
        )
    return found


def main() -> None:
    """Prints the table."""
    found = rows()
    if "--json" in sys.argv:
        print(json.dumps(found, indent=2))
        return
    figures = ("published", "predicted", "error")
    table = Table(("GPUs", "collective", "bytes", *figures, "source"), right=("bytes", *figures))
    for row in found:
        table.rows.append(
            (
                str(row["gpus"]),
                str(row["collective"]),
                f"{row['bytes']:,}",
                f"{row['published']:g} {row['unit']}",
                f"{row['predicted']:.4g} {row['unit']}",
                f"{row['error']:+.0%}{'' if row['in_range'] else ' !'}",
                f"{row['source']}{' *' if row['seen'] else ''}",
            )
        )
    show(table)
    for name, chosen in (("all", found), ("not seen", [row for row in found if not row["seen"]])):
        errors = [abs(float(str(row["error"]))) for row in chosen]
        within = sum(bool(row["in_range"]) for row in chosen)
        print(
            f"{name}: {len(chosen)} figures, median error {median(errors):.0%}, {within} in range"
        )


if __name__ == "__main__":
    main()
