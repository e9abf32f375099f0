"""Runs the suite, or the part of it that the filters name, and prints the table.

python -m tests.conformance --check forward --op 'linalg.*' --dtype float32
"""

import argparse
import json
import sys
import time
from collections import defaultdict
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path

from tests.conformance import crew, report
from tests.conformance.cases import Case, Outcome, as_on_a_card, judged, known_differences, unmet

# A fast run takes every so-manieth case of a check, spread over the whole database.
FAST = {
    ("forward", "float32"): 6, ("backward", "float32"): 15, ("inplace", "float32"): 15,
    ("out", "float32"): 15, ("errors", "float32"): 8, ("module", "float32"): 12,
    ("optimizer", "float32"): 5, ("autocast", "float16"): 6, ("random", "-"): 100,
}  # fmt: skip
FAST_SAMPLES = 2


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument(
        "--check", action="append", help="forward, backward, module, … (repeatable)"
    )
    parser.add_argument("--op", default="*", help="name of an op, module or optimizer; a * matches")
    parser.add_argument("--dtype", action="append", help="float32, bfloat16, … (repeatable)")
    parser.add_argument("--samples", type=int, help="so many samples a case; all if left out")
    parser.add_argument("--fast", action="store_true", help="a spread of cases, two samples each")
    parser.add_argument("--workers", type=int, default=2, help="2 if left out")
    parser.add_argument("--json", type=Path, help="write every outcome to this file")
    parser.add_argument("--again", type=Path, help="only what differed in a file of --json")
    return parser.parse_args()


def wanted(cases: list[Case], given: argparse.Namespace) -> list[Case]:
    failed = json.loads(given.again.read_text()) if given.again else []
    again = {Case(**o["case"]) for o in failed if o["failures"]}
    chosen = [
        case for case in cases
        if (not given.check or case.check in given.check)
        and (not given.dtype or case.dtype in given.dtype)
        and fnmatch(case.name, given.op)
        and (not given.again or case in again)
    ]  # fmt: skip
    return spread(chosen) if given.fast else chosen


def spread(cases: list[Case]) -> list[Case]:
    groups = defaultdict(list)
    for case in cases:
        groups[case.check, case.dtype].append(case)
    return [case for key, step in FAST.items() for case in groups[key][::step]]


class Progress:
    """One line on a terminal, rewritten as outcomes arrive."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.wrong = total, 0, 0

    def __call__(self, outcome: Outcome) -> None:
        self.done, self.wrong = self.done + 1, self.wrong + (not outcome.right)
        if sys.stderr.isatty():
            text = f"{self.done} of {self.total} cases, {self.wrong} differ"
            print(f"\r{text}", end="\n" if self.done == self.total else "", file=sys.stderr)


def main() -> int:
    given, begun = arguments(), time.monotonic()
    workers = [crew.Worker() for _ in range(given.workers)]
    try:
        everything = crew.listed(workers[0])
    except crew.WorkerDiedError as end:
        print(f"No worker with a virtual GPU could be started: {end}")
        return 1
    cases = wanted(everything, given)
    if not cases:
        print("No case matches the filters.")
        return 2
    limit = given.samples or (FAST_SAMPLES if given.fast else None)
    outcomes = crew.run(cases, limit, workers, Progress(len(cases)))
    if given.json:
        given.json.write_text(json.dumps([asdict(o) for o in outcomes]))
    known = known_differences()
    new, announced, stale = judged(outcomes, known)
    stale = [] if limit else stale  # with fewer samples a known difference may just not be met
    strange = unmet(everything, known)
    card = as_on_a_card(announced, known)
    table, enough = report.table([o for o in outcomes if o not in card])
    parts = [
        table, report.differences("As on a card and not as on the CPU, so not counted", card),
        report.differences("Known differences", [o for o in announced if o not in card]),
        report.differences("Differences", new), report.outdated(stale, strange),
        report.not_compared(outcomes), f"{len(cases)} cases in {time.monotonic() - begun:.0f} s.",
    ]  # fmt: skip
    print("\n\n".join(part for part in parts if part))
    # A share of a few cases says nothing; that none of them is an unannounced failure does.
    return 0 if (enough or limit) and not (new or stale or strange) else 1


if __name__ == "__main__":
    sys.exit(main())
