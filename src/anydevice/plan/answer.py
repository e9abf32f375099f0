"""What a plan says: whether a program fits, what holds the memory, how long a step takes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.text import Text

from anydevice.devices.catalogue import card
from anydevice.errors import UsageError
from anydevice.plan import context
from anydevice.plan.batch import Largest
from anydevice.plan.compiling import Compiling
from anydevice.plan.hollow import workspaces
from anydevice.plan.hollow.blocks import ACTIVATIONS, CATEGORIES, WORKSPACE, Peak, peak
from anydevice.plan.hollow.run import HollowRun
from anydevice.plan.hollow.steps import WHOLE
from anydevice.plan.modules import MODULES_SHOWN, OUTSIDE, grouped
from anydevice.plan.remedies.search import Remedies
from anydevice.plan.time.predict import Prediction, predict
from anydevice.tables import Shown, Table
from anydevice.text import UNSET, duration_text, size_text

LEAST_SHOWN = 0.005  # share of the total
BEYOND = ("rounding to blocks", "cached by the allocator", "CUDA context")
ROWS = (*CATEGORIES, *BEYOND)
CUBLAS = f"cuBLAS: {workspaces.CUBLAS_SOURCE}"
SOURCES = {
    WORKSPACE: f"{CUBLAS}; cuDNN: {workspaces.CUDNN_SOURCE}",
    "CUDA context": context.SOURCE,
}
ASSUMED = tuple(SOURCES)
FITS = {"yes": "yes", "maybe": "maybe", "no": "NO"}


@dataclass(repr=False)
class Plan(Shown):
    """What `ad.plan()` returns: a verdict for each kind of GPU.

    It shows itself as tables in a terminal and in a notebook.

    Attributes:
        program: The name of the program, the function, or the Trial's network.
        verdicts: One Verdict for each kind of GPU, in the order that was asked for.

    Example:
        >>> answer = ad.plan(train, ["t4", "h100"])  # doctest: +SKIP
        >>> answer.fits, answer["t4"].time.seconds  # doctest: +SKIP
        (True, 0.213)
    """

    program: str
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def fits(self) -> bool:
        """Whether it surely fits each of the GPUs."""
        return all(verdict.fits for verdict in self.verdicts)

    def __getitem__(self, gpu: str) -> Verdict:
        """The verdict for a kind of GPU.

        Raises:
            UsageError: If the plan does not cover this kind.
        """
        for verdict in self.verdicts:
            if verdict.run.gpu == card(gpu).kind:
                return verdict
        planned = ", ".join(verdict.run.gpu for verdict in self.verdicts)
        raise UsageError(f"expected one of the GPUs planned for, {planned}, got {gpu!r}.")

    def to_json(self) -> str:
        """The verdicts and the sources of what is assumed, as JSON."""
        verdicts = [verdict.to_dict() for verdict in self.verdicts]
        data = {"program": self.program, "fits": self.fits, "gpus": verdicts, "sources": SOURCES}
        return json.dumps(data, indent=2)

    def _shown(self) -> Iterator[Table | Text | Shown]:
        yield self._verdict_table()
        if sentences := self._sentences():
            yield Text("\n".join(sentences))
        yield self.memory_table()
        if phases := self._phase_table():
            yield phases
        if modules := self._module_table():
            yield modules
        yield from (v.compiling for v in self.verdicts if v.compiling)
        yield from (v.remedies for v in self.verdicts if v.remedies)
        yield Text("\n".join(self._notes()), style="dim")

    def _verdict_table(self) -> Table:
        timed = any(v.time for v in self.verdicts)
        searched = any(v.largest for v in self.verdicts)
        figures = ["memory", "tensors", "device"]
        figures += ["largest batch"] * searched + ["step", "samples/s"] * timed
        table = Table(("GPU", "fits", *figures), right=figures)
        run = self.verdicts[0].run
        counted = f"the first {run.counted if run.steps > 1 else run.unit}"
        table.title = f"{self.program}: {'all of it' if run.unit == WHOLE else counted}"
        for verdict in self.verdicts:
            run = verdict.run
            sizes = (run.card.memory, run.tensors, run.device_bytes)
            row = [run.gpu, FITS[run.verdict], *map(size_text, sizes)]
            row += [_largest_text(verdict.largest)] * searched
            row += _time_texts(verdict.time) if timed else []
            table.rows.append(row)
        return table

    def memory_table(self) -> Table:
        """What holds the memory of each GPU at its peak."""
        verdicts = [one for verdict in self.verdicts for one in verdict.of_each_gpu()]
        cards = [_column(verdict.run) for verdict in verdicts]
        holding = [verdict.holding() for verdict in verdicts]
        table = Table(("at the peak", *cards), right=cards)
        sums = {
            "rounding to blocks": ("= allocated", [v.run.allocated for v in verdicts]),
            "cached by the allocator": ("= reserved", [v.run.reserved for v in verdicts]),
            "CUDA context": ("= device", [v.run.device_bytes for v in verdicts]),
        }
        for name in sorted({name for held in holding for name in held}, key=ROWS.index):
            sizes = [held.get(name, 0) for held in holding]
            table.rows.append((name + "*" * (name in ASSUMED), *map(size_text, sizes)))
            if name in sums:
                table.rows.append((sums[name][0], *map(size_text, sums[name][1])))
        return table

    def _phase_table(self) -> Table | None:
        """The parts of a step on the first GPU: each optimizer's turn, a prompt and a token."""
        rows = self.verdicts[0].phases()
        if not rows:
            return None
        figures = ("times", "at its peak", "time")
        table = Table(("phase", *figures), right=figures)
        for name, count, size, seconds in rows:
            time = UNSET if seconds is None else duration_text(seconds)
            table.rows.append((name, str(count), size_text(size), time))
        return table

    def _module_table(self) -> Table | None:
        """The activations on the first GPU, by parts of the network, in few lines."""
        by_module = self.verdicts[0].activations()
        if sum(by_module.values()) <= LEAST_SHOWN * self.verdicts[0].peak.bytes:
            return None
        groups = grouped(by_module)
        table = Table(("activations of", "bytes", "share"), right=("bytes", "share"))
        total = sum(groups.values())
        largest = [(name, size) for name, size in groups.items() if size / total > LEAST_SHOWN]
        shown = dict(largest[:MODULES_SHOWN])
        if rest := len(groups) - len(shown):
            shown["1 other" if rest == 1 else f"{rest} others"] = total - sum(shown.values())
        kinds = self.verdicts[0].run.kinds
        for name, size in shown.items():
            kind = kinds.get(name.replace("*", "0"), name)
            named = name if kind == name else f"{name} ({kind})"
            table.rows.append((named, size_text(size), f"{size / total:.0%}"))
        return table

    def _sentences(self) -> list[str]:
        """The answer in a sentence for each GPU, before the details."""
        sentences = [_margin(verdict.run) for verdict in self.verdicts]
        sentences += [f"{v.run.gpu}: {v.time.sentence()}" for v in self.verdicts if v.time]
        run = self.verdicts[0].run
        if run.steps < run.wanted and not run.parts and run.unit != WHOLE:
            sentences.append(f"The program ended after {run.steps} of {run.wanted} {run.units}.")
        return sentences + list(dict.fromkeys(note for v in self.verdicts for note in v.run.notes))

    def _notes(self) -> list[str]:
        sources = {**SOURCES, "CUDA context": context.SUMMARY}
        if not any(verdict.run.cudnn for verdict in self.verdicts):
            sources[WORKSPACE] = CUBLAS
        return [f"* {name}: {source}." for name, source in sources.items()]


@dataclass
class Verdict:
    """What a plan says about one kind of GPU.

    Attributes:
        run: The hollow run: peaks in bytes, each block of memory, the ops of the last step.
        largest: The largest batch that fits; None if none was searched for.
        time: The predicted time of a step; None if fewer than two steps were run.
        remedies: What would make it fit; None if it fits and they were not asked for.
        compiling: What torch.compile changes, if that was asked for and can be known.

    Example:
        >>> verdict = ad.plan(train, "t4")["t4"]  # doctest: +SKIP
        >>> verdict.fits, verdict.run.device_bytes, verdict.time.seconds  # doctest: +SKIP
        (True, 8346009600, 0.213)
    """

    run: HollowRun
    largest: Largest | None = None
    time: Prediction | None = None
    remedies: Remedies | None = None
    compiling: Compiling | None = None

    @property
    def fits(self) -> bool:
        """Whether the steps surely fit into the GPU's memory."""
        return self.run.fits

    @property
    def verdict(self) -> str:
        """Whether they fit: "yes", "no", or "maybe", if that depends on the CUDA context."""
        return self.run.verdict

    @cached_property
    def peak(self) -> Peak:
        """The moment at which tensors and workspaces take the most memory."""
        return peak(self.run.blocks, self.run.device)

    def of_each_gpu(self) -> list[Verdict]:
        """A verdict for each GPU of a program that uses several; else this one."""
        runs = self.run.of_each_gpu()
        return [self] if len(runs) == 1 else [Verdict(run) for run in runs]

    def holding(self) -> dict[str, int]:
        """What holds the memory at the peak, in bytes; the sum is `run.device_bytes`."""
        run, held = self.run, Counter[str]()
        for block in self.peak.blocks:
            held[block.category] += block.bytes
        rows = {name: held[name] for name in CATEGORIES if held[name]}
        rounding = run.allocated - self.peak.bytes
        beyond = (rounding, run.reserved - run.allocated, run.context.value)
        return rows | dict(zip(BEYOND, beyond, strict=True))

    def phases(self) -> list[tuple[str, int, int, float | None]]:
        """The parts of a step: name, how often, the bytes at its peak, its seconds in all."""
        run = self.run
        return [
            (
                phase.name,
                phase.count,
                phase.bytes,
                predict(phase.work, run.card, gpus=run.gpus).seconds if phase.work else None,
            )
            for phase in run.phases
        ]

    def activations(self) -> dict[str, int]:
        """The bytes that each module keeps for the backward pass at the peak, the largest first."""
        held = Counter[str]()
        for block in self.peak.blocks:
            if block.category == ACTIVATIONS:
                held[block.module or f"{OUTSIDE}, {Path(block.where).name}"] += block.bytes
        return dict(held.most_common())

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        run = self.run
        return {
            "gpu": run.gpu,
            "name": run.card.name,
            "memory_bytes": run.card.memory,
            "fits": self.fits,
            "verdict": run.verdict,
            "margin_bytes": run.margin,
            "peak_bytes": {
                "tensors": run.tensors,
                "allocated": run.allocated,
                "reserved": run.reserved,
                "context": run.context.value,
                "device": run.device_bytes,
            },
            "range_bytes": {
                "context": (run.context.low, run.context.high),
                "device": run.device_range,
            },
            "largest_cudnn_workspace_bytes": run.cudnn,
            "at_the_peak_bytes": self.holding(),
            "activations_by_module_bytes": self.activations(),
            "each_gpu": [
                {
                    "device": one.run.device,
                    "allocated": one.run.allocated,
                    "reserved": one.run.reserved,
                    "device_bytes": one.run.device_bytes,
                    "at_the_peak_bytes": one.holding(),
                }
                for one in self.of_each_gpu()
            ],
            "steps": run.steps,
            "unit": run.unit,
            "notes": run.notes,
            "attention": run.attention,
            "phases": [
                dict(zip(("name", "count", "peak_bytes", "seconds"), phase, strict=True))
                for phase in self.phases()
            ],
            "samples": run.samples,
            "largest_batch": None
            if self.largest is None
            else {"batch": self.largest.batch, "all_data": self.largest.all_data},
            "time": None if self.time is None else self.time.to_dict(),
            "remedies": None if self.remedies is None else self.remedies.to_dict(),
            "compiling": None if self.compiling is None else self.compiling.to_dict(),
        }


def _column(run: HollowRun) -> str:
    """`t4`, or `t4 cuda:1` of several."""
    return run.gpu if run.gpus == 1 else f"{run.gpu} cuda:{run.device}"


def _margin(run: HollowRun) -> str:
    """How much memory is left, or lacks, and how sure that is."""
    left, (low, high) = run.card.memory - run.reserved, run.device_range
    least, most = left - run.context.high, left - run.context.low
    if run.verdict == "yes":
        return f"{run.gpu}: fits, with {_span(least, most)} to spare"
    if run.verdict == "no":
        return f"{run.gpu}: does not fit: {_span(-most, -least)} too much"
    return (
        f"{run.gpu}: may fit: it takes {_span(low, high)} of {size_text(run.card.memory)}, "
        "depending on the CUDA context; measure that and pass it with --context"
    )


def _span(low: int, high: int) -> str:
    ends = dict.fromkeys(map(size_text, (max(0, low), high)))
    return " to ".join(ends)


def _largest_text(largest: Largest | None) -> str:
    if largest is None:
        return UNSET
    return f"{largest.batch:,}" + " (all data)" * largest.all_data


def _time_texts(time: Prediction | None) -> list[str]:
    if time is None:
        return [UNSET, UNSET]
    rate = time.samples_per_second
    return [
        duration_text(time.seconds),
        f"{rate:,.0f}" if rate else UNSET,
    ]
