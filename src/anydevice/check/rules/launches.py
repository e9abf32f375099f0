"""Kernels that the GPU runs more quickly than the host launches them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

from anydevice.check.finding import Change, Finding, Recurring, Rule
from anydevice.check.trace import Seen, Span, Trace
from anydevice.virtual.compiled.launches import GRAPH, REPLAY, REPLAYED

MANY = 32  # times that a line launches the same op in a step
WORTH = 0.2  # of a step
Line = tuple[tuple[str, int], str]  # and the module that runs


class SmallKernels(Rule):
    """A loop in Python launches the same small kernels again and again in each step."""

    name = "small-kernels"
    kind = "slow"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each loop that does, at the line that launches most."""
        usual = trace.usual
        if usual is None or _is_compiled(trace, usual):
            return
        for seen in _loops(trace.work(usual)):
            ops = ", ".join(one for one, _ in Counter(one.op for one in seen).most_common(3))
            line = Recurring(seen[0].site, seen, len(seen), "step", 1.0, usual)
            finding = self.of_line(
                line,
                f"A loop launches {len(seen)} kernels here, one after the other ({ops}), and the "
                "GPU waits for them.",
                "one op on a tensor that holds them all, torch.vmap, or torch.compile(…, "
                'mode="reduce-overhead")',
                _replayed(_of(seen, trace.work(usual))),
            )
            finding.confidence, finding.least, finding.least_seconds = "likely", WORTH, 5e-4
            yield finding


def _loops(step: list[Seen]) -> Iterator[list[Seen]]:
    """What the lines of a function launch that run many times in the same call of a module."""
    lines: dict[Line, list[Seen]] = defaultdict(list)
    for one in step:
        if one.launched and one.phase == "forward" and one.site.frames and not one.site.library:
            lines[_line(one)].append(one)
    functions: dict[object, list[list[Seen]]] = defaultdict(list)
    for seen in lines.values():
        if max(Counter(one.op for one in seen).values()) >= MANY:
            function = seen[0].site.file, seen[0].site.frames[0].function, seen[0].module
            functions[function].append(seen)
    for of_it in functions.values():
        yield [one for seen in sorted(of_it, key=len, reverse=True) for one in seen]


def _line(one: Seen) -> Line:
    return one.site.own, one.module


def _of(seen: list[Seen], step: list[Seen]) -> Callable[[Seen], bool]:
    """Those launches, and what goes back through them: as often, and of the same shapes."""
    lines = set(map(_line, seen))
    fewest = min(count for count in Counter(one.op for one in seen).values() if count >= MANY)
    back = Counter((one.op, one.shapes) for one in step if one.launched and _is_back(one))

    def is_of(one: Seen) -> bool:
        if _is_back(one):
            return back[one.op, one.shapes] >= 0.9 * fewest
        return one.phase == "forward" and _line(one) in lines

    return is_of


def _is_back(one: Seen) -> bool:
    return one.phase == "backward"


class LaunchBound(Rule):
    """The GPU waits for launches, which torch.compile or CUDA graphs would save."""

    name = "launch-bound"
    kind = "slow"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Once for the program."""
        usual = trace.usual
        if usual is None or _is_compiled(trace, usual):
            return
        step = trace.work(usual)
        launched = [one for one in step if one.launched and _can_be_compiled(one)]
        if launched and not any(_loops(step)):
            yield self.finding(
                f"The GPU waits for the host, which launches {len(launched)} kernels one by one. "
                "What compiled kernels save by fusing is not counted.",
                'network = torch.compile(network, mode="reduce-overhead")',
                next((call.site for call in trace.named("forward")), launched[0].site),
                count=len(launched),
                per="step",
                change=_replayed(_can_be_compiled),
                confidence="likely",
                least=WORTH,
                least_seconds=5e-4,
                hint=True,
            )


def _is_compiled(trace: Trace, usual: Span) -> bool:
    return any(one.launched.host for one in trace.work(usual) if one.launched)


def _can_be_compiled(one: Seen) -> bool:
    return bool(one.module) if one.phase == "forward" else one.phase == "backward"


def _replayed(wanted: Callable[[Seen], bool]) -> Change:
    """One CUDA graph for what is wanted in each phase, up to where the host waits."""

    def change(step: list[Seen]) -> Iterator[Seen]:
        graph = ""  # the phase that the open graph is of
        for one in step:
            op = one.launched
            if one.waits or one.phase != graph:
                graph = ""
            if op is None or not wanted(one):
                if not (graph and wanted(one) and one.launches_nothing):
                    yield one
                continue
            if not graph:
                graph = one.phase
                for host in (GRAPH, REPLAY):
                    yield replace(one, entry=replace(op, kernels=0, products=(), host=host))
            yield one.changed(host=REPLAYED)

    return change
