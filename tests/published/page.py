"""docs/accuracy.md and its pictures: how right plans are, from published measurements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from anydevice.text import duration_text, size_text

from .compare import MEMORY, Compared, Summary, summaries
from .records import Record, records
from .scatter import THEMES, scatter

DOCS = Path(__file__).parents[2] / "docs"
INTRODUCTION = """\
# Accuracy

`make published` plans programs whose memory or time others published, and writes this page. Nobody
had this project in mind when they measured. Each record has its source, card, PyTorch version and
program in `tests/published/`. The programs were written again from the sources' own repositories,
so a part of each error is the copy's, not the prediction's.

**Allocated** is `torch.cuda.max_memory_allocated()`, **reserved** what the allocator took from the
driver, **device** what `nvidia-smi` shows, **time** a training step, **rate** the tokens that each
GPU of a cluster trains on in a second.

No program and no constant was chosen or changed with a figure marked *new* in view; all others were
seen before. The rates of products come from other people's measurements of matrix products; that of
convolutions (0.85 of them) was chosen with the RTX 3090 in view, and that of kernels next to
collectives (`together`) with those figures of MPT in view that are not marked *new*. Programs are
what their sources ran then: PyTorch before 1.11 kept the input of a softmax too, torchtitan in 2024
had an RMSNorm of single ops. Lit-GPT's tables name a commit whose RMSNorm computes in bf16. All
five figures of Llama agree to 0.2 % with one in float32, which Lit-GPT had within days of them, so
that is the main reading: it was chosen with the figures in view, and may be wrong. An
*alternative* shows the other.
"""
PICTURES = """
![Memory, predicted against measured](pictures/accuracy-memory-light.svg#only-light)
![Memory, predicted against measured](pictures/accuracy-memory-dark.svg#only-dark)

![Time of a step, predicted against measured](pictures/accuracy-time-light.svg#only-light)
![Time of a step, predicted against measured](pictures/accuracy-time-dark.svg#only-dark)

![Tokens a second, predicted against measured](pictures/accuracy-rate-light.svg#only-light)
![Tokens a second, predicted against measured](pictures/accuracy-rate-dark.svg#only-dark)
"""
TICKS = {
    "memory": [2**20 * size for size in (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)],
    "time": [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0],
    "rate": [100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000],
}


WORST = """
## What is furthest off, and why

- **BERT with fp16 on a V100, time**: 16 to 30 % too quick, below its range. A step of accumulated,
  checkpointed fp16 is some 18,000 short kernels, and the predicted host keeps up with them. One of
  2022, with PyTorch 1.10 and the Trainer around it, probably did not. No constant was changed for
  it.
- **BERT with fp16, memory**: 4 % low at batch 4 without checkpointing, and right to 0.1 % with it.
  So some 16 MiB are missing in each layer's activations; what they were in PyTorch 1.10 is not
  known.
- **MPT 13B on 8 A100 with 40 GB**: 16 % too quick. The card is nearly full (36.7 GiB reserved is
  predicted); freeing cached memory and taking it again would cost time that is not predicted.
- **Llama 3 8B on 64 A100**: 11 % too slow. The figure is of mid-2024, the program of December.
- **ResNets in NCHW on an RTX 3090**: up to 16 % too slow. Half-precision convolutions of NCHW
  tensors change the layout inside cuDNN; how often is assumed.
"""


def write_page(rows: Sequence[Compared], docs: Path = DOCS) -> None:
    """Writes the page and its pictures."""
    parts = [INTRODUCTION, *_planned(rows), *_summary(rows), *_aims(rows), WORST, PICTURES]
    text = "\n".join([*parts, *_table(rows), ""])
    (docs / "accuracy.md").write_text(text, "utf-8")
    main = [row for row in rows if row.record.reading == "main"]
    memory = {name: _of(main, name) for name in MEMORY}
    for theme in THEMES:
        times, rates = _by_card(main, "time"), _by_card(main, "rate")
        each_gpu = "Tokens a second on each GPU of a cluster"
        pictures = {
            "memory": scatter(memory, theme, "Memory at the peak", size_text, TICKS["memory"]),
            "time": scatter(times, theme, "Time of a step", duration_text, TICKS["time"]),
            "rate": scatter(rates, theme, each_gpu, "{:,.0f}".format, TICKS["rate"]),
        }
        for name, picture in pictures.items():
            (docs / "pictures" / f"accuracy-{name}-{theme}.svg").write_text(picture, "utf-8")


def _of(rows: Iterable[Compared], quantity: str) -> list[Compared]:
    return [row for row in rows if row.record.quantity == quantity]


def _by_card(rows: Iterable[Compared], quantity: str) -> dict[str, list[Compared]]:
    groups: dict[str, list[Compared]] = {}
    for row in _of(rows, quantity):
        groups.setdefault(row.record.card, []).append(row)
    return groups


def _planned(rows: Sequence[Compared]) -> list[str]:
    if (planned := len(rows)) == (known := len(records())):
        return []
    return [f"The last run planned {planned} of the {known} records.", ""]


def _aims(rows: Sequence[Compared]) -> Iterator[str]:
    """What was aimed at, what was found, and whether that is enough."""
    main = [row for row in rows if row.record.reading == "main"]
    found = {each.quantity: each for each in summaries(rows)}
    yield ""
    yield "| aim | found | |"
    yield "| --- | --- | --- |"
    for quantity, most in (("allocated", 0.003), ("reserved", 0.01), ("device", 0.05)):
        if each := found.get(quantity):
            yield _aim(f"{quantity}: median error at most {most:.1%}", each.median, most)
    if each := found.get("allocated"):
        yield _aim("allocated: nine tenths below 3.0%", each.p90, 0.03)
    for quantity in ("time", "rate"):
        if each := found.get(quantity):
            yield _aim(f"{quantity}: median error at most 15.0%", each.median, 0.15)
            least = 0.75 if quantity == "time" else 1.0
            outside = 1 - each.inside / each.count
            yield _aim(f"{quantity}: {1 - least:.0%} of figures outside", outside, 1 - least)
    wide = max((_width(row) for row in main if row.record.quantity in ("time", "rate")), default=0)
    yield _aim("no range wider than ± 40%", wide, 0.4)
    clusters = [row for row in _of(main, "reserved") if "--nodes" in row.record.flags]
    if clusters:
        worst = max(row.error for row in clusters)
        yield _aim(f"clusters, {len(clusters)} figures of memory: all within 1.0%", worst, 0.01)


def _aim(aim: str, found: float, most: float) -> str:
    return f"| {aim} | {found:.2%} | {'met' if found <= most else '**missed**'} |"


def _width(row: Compared) -> float:
    """Half of a range, as a share of its middle."""
    return (row.high - row.low) / (row.high + row.low)


def _summary(rows: Sequence[Compared]) -> Iterator[str]:
    yield from _summary_table(rows)
    if fits := _of(rows, "fits"):
        sure = sum(row.predicted != "maybe" and not row.wrong for row in fits)
        wrong = sum(row.wrong for row in fits)
        yield ""
        yield (
            f"Whether it fits: {sure} of {len(fits)} right, {len(fits) - sure - wrong} maybe, "
            f"{wrong} wrong."
        )
    if new := [row for row in rows if not row.record.seen]:
        yield ""
        yield "The same for new figures, with which in view nothing was chosen or changed:"
        yield ""
        yield from _summary_table(new)


def _summary_table(rows: Sequence[Compared]) -> Iterator[str]:
    heads = ("", "figures", "median error", "90 % below", "worst", "predicted/measured")
    yield f"| {' | '.join((*heads, 'in the range'))} |"
    yield "| --- |" + " --: |" * 6
    yield from map(_summary_row, summaries(rows))


def _summary_row(found: Summary) -> str:
    inside = f"{found.inside}" if found.quantity in ("time", "rate", "device") else ""
    return (
        f"| {found.quantity} | {found.count} | {found.median:.2%} | {found.p90:.1%} | "
        f"{found.worst:.1%} | {found.ratio:.3f} | {inside} |"
    )


def _table(rows: Sequence[Compared]) -> Iterator[str]:
    yield "## Each figure"
    yield ""
    yield (
        "An *alternative* is another reading of what the source says of its program. *New*: no "
        "program and no constant was chosen or changed with the figure in view."
    )
    source = None
    for row in sorted(rows, key=lambda row: (row.record.source, row.record.card)):
        if (row.record.source, row.record.card) != source:
            source = row.record.source, row.record.card
            yield ""
            yield f"### {row.record.source.removeprefix('github.com/')}"
            yield ""
            yield f"On {row.record.card} with PyTorch {row.record.torch}."
            yield ""
            yield "| program | | measured | predicted | range | ratio | |"
            yield "| --- | --- | --: | --: | --: | --: | --- |"
        yield _row(row)


def _row(row: Compared) -> str:
    record = row.record
    marks = [*["alternative"] * (record.reading != "main"), *["new"] * (not record.seen)]
    marks += [record.note] * bool(record.note)
    note = "; ".join(marks)
    if record.quantity == "fits":
        measured = "yes" if record.value else "no"
        note = "; ".join(["**wrong**"] * row.wrong + marks)
        return f"| {record.id} | fits | {measured} | {row.predicted} | | | {note} |"
    text = {"time": duration_text, "rate": _rate}.get(record.quantity, size_text)
    ends = f"{text(row.low)} to {text(row.high)}" if row.high > row.low else ""
    figures = f"{text(record.measured)} | {text(float(row.predicted))} | {ends} | {row.ratio:.3f}"
    return f"| {record.id} | {record.quantity} | {figures} | {note} |"


def _rate(tokens: float) -> str:
    return f"{tokens:,.0f} tokens/s"


def short(record: Record) -> str:
    """A record in a line of a terminal."""
    return f"{record.id}, {record.quantity}"
