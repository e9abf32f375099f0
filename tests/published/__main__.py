"""`make published`: plans the programs of all published measurements, and writes docs/accuracy.md.

python -m tests.published                 # about forty minutes on two cores
python -m tests.published --only vit      # records with this in their names, in the terminal alone
python -m tests.published --reuse         # with what the last run kept in build/published.json
python -m tests.published --kept          # with that alone: nothing is planned
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .compare import Answer, Compared, compared, planned, summaries
from .page import short, write_page
from .records import Record, records

KEPT = Path("build/published.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--reuse", action="store_true")
    parser.add_argument("--kept", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    chosen = [record for record in records() if options.only in record.id]
    reuse = (options.reuse or options.kept) and KEPT.exists()
    kept = json.loads(KEPT.read_text("utf-8")) if reuse else {}
    if options.kept:
        chosen = [record for record in chosen if _key(record) in kept]
    answers = _answers(chosen, kept, options.jobs)
    rows = [_compared(record, answers[_key(record)]) for record in chosen]
    found = [row for row in rows if row]
    for row in found:
        says = row.predicted if isinstance(row.predicted, str) else f"{row.ratio:.3f}"
        print(f"{short(row.record):60} {says}{'  WRONG' * row.wrong}")
    for summary in summaries(found):
        print(
            f"{summary.quantity}: {summary.count} figures, median error {summary.median:.2%}, "
            f"p90 {summary.p90:.1%}, worst {summary.worst:.1%}, in the range {summary.inside}"
        )
    print(f"fits: {sum(row.wrong for row in found)} wrong")
    if not options.only:
        write_page(found)


def _key(record: Record) -> str:
    return " ".join(record.key)


def _answers(chosen: list[Record], kept: dict[str, Answer], jobs: int) -> dict[str, Answer]:
    """One plan for each program, and those that a run before this one kept."""
    todo = {_key(record): record for record in chosen if _key(record) not in kept}
    KEPT.parent.mkdir(exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        for key, answer in zip(todo, pool.map(planned, todo.values()), strict=True):
            kept[key] = answer
            KEPT.write_text(json.dumps(kept, indent=1), "utf-8")
    return kept


def _compared(record: Record, answer: Answer) -> Compared | None:
    if "error" in answer:
        print(f"{short(record)}: could not be planned: {answer['error']}")
        return None
    return compared(record, answer)


if __name__ == "__main__":
    main()
