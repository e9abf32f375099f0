"""Ranks of a distributed program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import ceil

from torch.nn.parallel import DistributedDataParallel

from anydevice.check.finding import Finding, Rule
from anydevice.check.trace import Call, Seen, Trace
from anydevice.plan.time.work import Exchange
from anydevice.text import size_text

LARGE = 64 << 20  # bytes of gradients, below which their copies are not worth a line
BUCKET = 25 << 20  # bytes that DDP gathers by default


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


def _parallel(trace: Trace) -> tuple[DistributedDataParallel, Call] | None:
    """The first network under DDP, and a call of it."""
    networks = trace.facts.get("networks", {})
    for call in trace.named("forward"):
        network = networks.get(call.info["network"])
        if isinstance(network, DistributedDataParallel):
            return network, call
    return None


class BucketCopies(Rule):
    """DDP keeps a second copy of all gradients, and copies them in each step."""

    name = "bucket-copies"
    kind = "slow"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Once for the program."""
        found, usual = _parallel(trace), trace.usual
        if found is None or usual is None or found[0].gradient_as_bucket_view:
            return
        copies = list(filter(_comes_back(trace.work(usual)), trace.work(usual)))
        size = sum(one.launched.bytes for one in copies if one.launched) / 2
        if size >= LARGE:
            yield self.finding(
                f"DDP keeps the gradients in its buckets too, {size_text(int(size))} more, and "
                f"copies them back in {len(copies)} copies.",
                "DistributedDataParallel(…, gradient_as_bucket_view=True)",
                found[1].site,
                count=len(copies),
                per="step",
                bytes=int(size),
                change=_as_views,
                least=0.005,
            )


def _comes_back(step: list[Seen]) -> Callable[[Seen], bool]:
    """Whether an entry copies a gradient out of a bucket, which a collective has written."""
    exchanged = {s for one in step if isinstance(one.entry, Exchange) for s in one.entry.writes}

    def is_back(one: Seen) -> bool:
        op = one.launched
        copied = op is not None and one.phase == "backward" and one.op == "copy_"
        return copied and any(s in exchanged and s not in op.writes for s in op.reads if op)  # type: ignore[union-attr]

    return is_back


def _as_views(step: list[Seen]) -> Iterator[Seen]:
    """Without the copies: who reads a gradient then reads the bucket."""
    is_back = _comes_back(step)
    bucket: dict[int, int] = {}
    for one in step:
        op = one.launched
        if op is not None and is_back(one):
            source = next(s for s in op.reads if s not in op.writes)
            bucket.update(dict.fromkeys(op.writes, source))
        elif op is not None and not bucket.keys().isdisjoint((*op.reads, *op.writes)):
            reads, writes = (
                tuple(bucket.get(s, s) for s in each) for each in (op.reads, op.writes)
            )
            yield one.changed(reads=reads, writes=writes)
        elif not (one.phase == "backward" and one.op == "as_strided"):
            yield one


class SmallBuckets(Rule):
    """DDP reduces the gradients in many small buckets."""

    name = "small-buckets"
    kind = "slow"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Once for the program."""
        found, usual = _parallel(trace), trace.usual
        if found is None or usual is None:
            return
        sizes = [one.entry.size for one in trace.work(usual) if _reduces(one)]  # type: ignore[union-attr]
        fewest = ceil(sum(sizes) / BUCKET)
        if fewest and len(sizes) >= 4 * fewest and len(sizes) >= 8:
            yield self.finding(
                f"DDP reduces {size_text(sum(sizes))} of gradients in {len(sizes)} buckets: each "
                "collective takes its time to begin.",
                "DistributedDataParallel(…), whose buckets have 25 MB, without bucket_cap_mb",
                found[1].site,
                count=len(sizes),
                per="step",
                change=_in_larger,
                least=0.02,
            )


def _reduces(one: Seen) -> bool:
    entry = one.entry
    return isinstance(entry, Exchange) and entry.name == "all_reduce" and one.phase == "backward"


def _in_larger(step: list[Seen]) -> Iterator[Seen]:
    """As many collectives as full buckets, each at the place of its last part."""
    left = sum(map(_reduces, step))
    waiting: list[Exchange] = []
    for one in step:
        if not _reduces(one):
            yield one
            continue
        left -= 1
        waiting.append(one.entry)  # type: ignore[arg-type]
        size = sum(each.size for each in waiting)
        if size >= BUCKET or not left:
            touched = tuple(s for each in waiting for s in each.writes)
            moved = sum(each.bytes for each in waiting)
            whole = replace(waiting[-1], size=size, bytes=moved, reads=touched, writes=touched)
            yield replace(one, entry=whole)
            waiting = []
