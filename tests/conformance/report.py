"""The table of what was measured, and the list of what differs."""

from collections import defaultdict
from dataclasses import dataclass

from tests.conformance.cases import Case, Outcome


@dataclass(frozen=True)
class Row:
    """One line of the table: the share of its cases that must be right, in percent."""

    figure: str
    checks: tuple[str, ...]
    at_least: float
    dtypes: tuple[str, ...] = ()

    def outcomes(self, outcomes: list[Outcome]) -> list[Outcome]:
        return [
            o for o in outcomes
            if o.case.check in self.checks and (not self.dtypes or o.case.dtype in self.dtypes)
        ]  # fmt: skip


ROWS = [
    Row("op_db, forward, float32", ("forward",), 99.5, ("float32",)),
    Row("op_db, forward, float64", ("forward",), 99, ("float64",)),
    Row("op_db, forward, bfloat16", ("forward",), 99, ("bfloat16",)),
    Row("op_db, forward, float16", ("forward",), 99, ("float16",)),
    Row("op_db, forward, int64", ("forward",), 99, ("int64",)),
    Row("op_db, forward, bool", ("forward",), 99, ("bool",)),
    Row("op_db, forward, complex64", ("forward",), 99, ("complex64",)),
    Row("op_db, forward, non-contiguous inputs", ("noncontiguous",), 99),
    Row("op_db, in-place variants", ("inplace",), 99),
    Row("op_db, out= variants", ("out",), 99),
    Row("op_db, backward, float32 and float64", ("backward",), 99),
    Row("op_db, second derivatives, forward mode", ("gradgrad", "jvp"), 99),
    Row("op_db, error inputs", ("errors",), 99),
    Row("module_db, forward, backward, state", ("module",), 100),
    Row("optim_db, five steps", ("optimizer",), 100),
    Row("autocast lists", ("autocast",), 99),
    Row("100 short programs", ("program",), 100),
    Row("batches of 100 random programs", ("random",), 100),
]


def table(outcomes: list[Outcome]) -> tuple[str, bool]:
    """The table, and whether every measured figure is high enough."""
    lines, enough = [], True
    for row in ROWS:
        compared = [o for o in row.outcomes(outcomes) if not o.empty]
        if not compared:
            continue
        right = sum(o.right for o in compared)
        share = 100 * right / len(compared)
        verdict = "pass" if share >= row.at_least else "FAIL"
        enough &= verdict == "pass"
        count = f"{right} of {len(compared)}"
        lines.append([row.figure, f"{row.at_least:g} %", f"{share:.2f} %", count, verdict])
    return aligned([["figure", "at least", "measured", "right", ""], *lines]), enough


def aligned(lines: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [
        "  ".join(x.ljust(w) for x, w in zip(line, widths, strict=True)).rstrip() for line in lines
    ]
    return "\n".join([padded[0], "-" * (sum(widths) + 2 * len(widths) - 2), *padded[1:]])


def differences(title: str, outcomes: list[Outcome]) -> str:
    lines = [f"{title}: {len(outcomes)}"] if outcomes else []
    for o in sorted(outcomes, key=lambda o: o.case):
        count = f"{len(o.failures)} of {o.tried} samples; " if o.tried > 1 else ""
        lines.append(f"  {o.case.check} {o.case.name} {o.case.dtype}: {count}{o.failures[0][:300]}")
    return "\n".join(lines)


def outdated(right: list[Case], unmet: list[str]) -> str:
    lines = [f"  {c.check} {c.name} {c.dtype}: right" for c in right]
    lines += [f"  {name}: no such case" for name in unmet]
    title = ["exceptions.toml announces what is no difference:"] if lines else []
    return "\n".join(title + lines)


def not_compared(outcomes: list[Outcome]) -> str:
    names = defaultdict(list)
    for o in sorted((o for o in outcomes if o.empty), key=lambda o: o.case):
        names[o.case.check].append(f"{o.case.name} {o.case.dtype}")
    title = ["Nothing to compare, so not counted:"] if names else []
    return "\n".join(title + [f"  {check}: {', '.join(all_)}" for check, all_ in names.items()])
