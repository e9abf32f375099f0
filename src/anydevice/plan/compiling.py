"""What compiling a program changes: its memory, its time and its kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rich.text import Text

from anydevice.errors import UsageError
from anydevice.plan.hollow.compiled import EAGER, WHOLE
from anydevice.plan.hollow.run import HollowRun
from anydevice.tables import Shown, Table
from anydevice.text import UNSET, duration_text, size_text
from anydevice.virtual.compiled import choice
from anydevice.virtual.compiled.tracing import Cause, Traced

SHOWN = 12  # graph breaks and recompilations
UNAVAILABLE = "--compile: the plan is for the eager program alone, since {}."
NO_NETWORK = (
    "--compile: the program calls no module that has parameters on the GPU, so there is nothing to "
    "compile; torch.compile takes functions too."
)
FAILED = "--compile: compiled, the program could not be planned: {}"
ITSELF = "The program calls torch.compile itself; the eager column is the program without that."
NETWORKS = "Compiled: what the program calls itself ({}), as by model = torch.compile(model)."


class Measured(NamedTuple):
    """What a run took: of one process, or rank 0 of several and the one that takes the most."""

    run: HollowRun
    fullest: HollowRun
    seconds: float | None

    @classmethod
    def of(cls, run: HollowRun) -> Measured:
        """A program of one process."""
        time = run.predicted()
        return cls(run, run, time.seconds if time else None)

    def figures(self) -> Figures:
        """The same in figures."""
        fullest = self.fullest
        return Figures(fullest.device_bytes, fullest.fits, self.seconds, _kernels(self.run))


@dataclass(frozen=True)
class Figures:
    """What a step takes.

    Attributes:
        device_bytes: The memory, as nvidia-smi would show it.
        fits: Whether it surely fits.
        seconds: The predicted time; None if fewer than two steps were run.
        kernels: How many kernels it launches; None likewise.
    """

    device_bytes: int
    fits: bool
    seconds: float | None
    kernels: int | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dict(vars(self))


@dataclass(repr=False)
class Compiling(Shown):
    """A program as it is written and compiled, on one kind of GPU.

    Attributes:
        gpu: The kind of GPU.
        eager: A step without torch.compile.
        compiled: A step with it.
        traced: Graphs, graph breaks and recompilations, with line and reason.
        networks: The classes of the modules that were compiled, if the program does not.
        notes: What was assumed for the other of the two programs, as sentences.
        itself: Whether the program calls torch.compile itself.

    Example:
        >>> answer = ad.plan(train, "h100", compile=True)  # doctest: +SKIP
        >>> answer["h100"].compiling.speedup  # doctest: +SKIP
        1.85
    """

    gpu: str
    eager: Figures
    compiled: Figures
    traced: Traced
    networks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    itself: bool = False

    @property
    def speedup(self) -> float | None:
        """How many times faster a compiled step is."""
        before, after = self.eager.seconds, self.compiled.seconds
        return before / after if before and after else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "eager": self.eager.to_dict(),
            "compiled": self.compiled.to_dict(),
            "speedup": self.speedup,
            "graphs": self.traced.graphs,
            "graph_breaks": [dict(vars(each)) for each in self.traced.breaks],
            "recompilations": [dict(vars(each)) for each in self.traced.recompilations],
            "networks": self.networks,
            "notes": self.notes,
            "program_compiles": self.itself,
        }

    def sentence(self) -> str:
        """What was compiled."""
        if self.itself:
            return ITSELF
        return NETWORKS.format(", ".join(dict.fromkeys(self.networks)))

    def _shown(self) -> Iterator[Table | Text | Shown]:
        yield self._figures()
        yield Text("\n".join([self.sentence(), *self.notes]))
        for what, causes in (
            ("graph break", self.traced.breaks),
            ("recompilation", self.traced.recompilations),
        ):
            if causes:
                yield _causes(what, causes)

    def _figures(self) -> Table:
        names = ("eager", "compiled", "")
        table = Table(
            ("torch.compile", *names), right=names[:2], title=f"{self.gpu}: eager and compiled"
        )
        before, after, traced = self.eager, self.compiled, self.traced
        sizes = before.device_bytes, after.device_bytes
        table.rows.append(("device memory", *map(size_text, sizes), _change(*sizes)))
        seconds = before.seconds, after.seconds
        table.rows.append(("step", *map(_duration, seconds), _speed(self.speedup)))
        kernels = before.kernels, after.kernels
        table.rows.append(("kernels in a step", *map(_count, kernels), ""))
        for name, count in (
            ("graphs", traced.graphs),
            ("graph breaks", len(traced.breaks)),
            ("recompilations", len(traced.recompilations)),
        ):
            table.rows.append((name, UNSET, f"{count:,}", ""))
        return table


def compared(written: Measured, again: Callable[[str], Measured]) -> Compiling | str:
    """The program compiled, and not; or a sentence that says why there is no such answer.

    Args:
        written: The run of the program as it is written.
        again: Runs it once more, as EAGER or WHOLE.
    """
    if reason := choice.unavailable():
        return UNAVAILABLE.format(reason)
    itself = bool(written.run.traced.graphs)
    try:
        other = again(EAGER if itself else WHOLE)
    except UsageError as error:
        return FAILED.format(str(error).splitlines()[0])
    eager, compiled = (other, written) if itself else (written, other)
    run = compiled.run
    if not itself and not run.networks:
        return NO_NETWORK
    figures = eager.figures(), compiled.figures()
    notes = [note for note in other.run.notes if note not in written.run.notes]
    return Compiling(run.gpu, *figures, run.traced, run.networks, notes, itself)


def _kernels(run: HollowRun) -> int | None:
    parts = run.parts or ([(run.work, 1)] if run.work else [])
    return sum(n * sum(op.kernels for op in work.ops) for work, n in parts) if parts else None


def _causes(what: str, causes: list[Cause]) -> Table:
    table = Table((what, "reason"))
    table.rows = [(cause.where, cause.reason) for cause in causes[:SHOWN]]
    if more := len(causes) - SHOWN:
        table.rows += [(f"{more} more", "")] if more > 0 else []
    return table


def _change(before: int, after: int) -> str:
    share = (after - before) / before
    return f"{share:+.0%}" if abs(share) >= 0.005 else "the same"


def _speed(times: float | None) -> str:
    if times is None:
        return ""
    return f"{times:.2f} × faster" if times >= 1 else f"{1 / times:.2f} × slower"


def _duration(seconds: float | None) -> str:
    return UNSET if seconds is None else duration_text(seconds)


def _count(count: int | None) -> str:
    return UNSET if count is None else f"{count:,}"
