"""Plans of our own Llama 3 on clusters, against figures that torchtitan's authors published.

python -m benchmarks.clusters [--json]     # ten minutes on two cores

The H100 of those tables has 96 GB at 2.4 TB/s and a power limit of 500 W. What the limit costs is
assumed (h100-500w in the catalogue), so its tokens per second are listed apart.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from anydevice.plan.cluster.answer import ClusterPlan
from anydevice.plan.cluster.command import Launched
from anydevice.plan.planning import plan
from anydevice.tables import Table, show

LLAMA = str(Path(__file__).parents[1] / "examples" / "llama3.py")
REPORT = "pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md"
DOCS = "pytorch/torchtitan docs/performance.md of 2024"
TOKENS, GIB = "tokens/s/GPU", "GiB reserved"


@dataclass(frozen=True)
class Published:
    """A row: what was trained on which cluster, and its figures."""

    model: str
    gpu: str
    nodes: int
    figures: dict[str, float]
    source: str
    limited: bool = False  # by a power limit, whose cost is assumed


ROWS = (
    Published("--model 8b --batch 2", "h100-500w", 1, {GIB: 82.4, TOKENS: 5762}, REPORT, True),
    Published(
        "--model 8b --batch 2 --compile", "h100-500w", 1, {GIB: 77.0, TOKENS: 6667}, REPORT, True
    ),
    Published("--model 8b --batch 2", "h100-500w", 16, {GIB: 67.0, TOKENS: 5605}, REPORT, True),
    Published("--model 8b --batch 1", "a100-80gb", 8, {TOKENS: 2973}, DOCS),
    Published("--model 70b --batch 1 --checkpoint full", "a100-80gb", 8, {TOKENS: 331}, DOCS),
    Published(
        "--model 405b --batch 2 --tp 8 --checkpoint full",
        *("h100-500w", 16, {TOKENS: 109}, DOCS, True),
    ),
)


def predicted(row: Published) -> dict[str, tuple[float, float, float]]:
    """The same figures by a plan, each with its range."""
    launch = Launched((LLAMA, *row.model.split()), row.nodes, 8, "torchrun")
    answer = plan(launch, row.gpu)
    assert isinstance(answer, ClusterPlan)
    verdict = answer.verdicts[0]
    time, held = verdict.time, verdict.tightest.run.reserved / 2**30
    assert time
    assert time.tokens
    each = time.tokens / time.gpus
    rates = each / time.seconds, each / time.high, each / time.low
    return {GIB: (held, held, held), TOKENS: rates}


def rows() -> list[dict[str, object]]:
    """Each figure, and what is predicted."""
    found = []
    for row in ROWS:
        answers = predicted(row)
        for unit, figure in row.figures.items():
            value, low, high = answers[unit]
            found.append(
                {
                    "model": row.model,
                    "gpus": f"{row.nodes} × 8 {row.gpu}",
                    "unit": unit,
                    "published": figure,
                    "predicted": value,
                    "error": value / figure - 1,
                    "in_range": low <= figure <= high,
                    "limited": row.limited and unit == TOKENS,
                    "source": row.source,
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
    table = Table(("Llama 3", "GPUs", "figure", *figures), right=figures)
    for row in found:
        note = " (power limit)" * bool(row["limited"])
        table.rows.append(
            (
                str(row["model"]),
                str(row["gpus"]),
                f"{row['unit']}{note}",
                f"{row['published']:,}",
                f"{row['predicted']:,.4g}",
                f"{row['error']:+.1%}",
            )
        )
    show(table)
    errors = [abs(float(str(row["error"]))) for row in found if not row["limited"]]
    print(f"{len(errors)} figures without a power limit, median error {median(errors):.1%}")


if __name__ == "__main__":
    main()
