"""Ranks of a distributed program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from anydevice.check.finding import Finding, Rule
from anydevice.check.trace import Trace


class SharedGPU(Rule):
    """A rank works on the GPU of another rank of its node."""

    name = "ranks-share-a-gpu"
    kind = "error"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Once, at the first op of a rank that is not on its own GPU."""
        rank = trace.facts.get("rank")
        products = [one for one in trace.seen if one.launched and one.launched.products]
        used = Counter(one.launched.device for one in products if one.launched)
        if rank and used and rank not in used:
            yield self.finding(
                f"Local rank {rank} computes on cuda:{used.most_common(1)[0][0]}, which is another "
                "rank's.",
                'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before anything else',
                next((one.site for one in products if one.site), products[0].site),
            )
