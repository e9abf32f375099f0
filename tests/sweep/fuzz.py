"""Records with anything in them: read as they were written, or reported as damaged.

python -m tests.sweep.fuzz --count 2000

Bytes of a record or of sweep.json are changed, which its checksum has to find. Or its JSON is
changed and summed anew, or is of the format before checksums: then it may be read, and whatever
it says is shown as a table, as JSON, as CSV and as a page, without an exception.
"""

import argparse
import json
import random
import tempfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import anydevice as ad
from anydevice.errors import UsageError
from anydevice.sweep.records.records import HEAD, Record, Sheet, enter, read_all, write
from anydevice.tables import plain_text
from tests.train.fuzz import change_bytes, places

RUNS = 3
LONG = 9  # a page is made for one in so many, since that takes longest
ODD: list[Any] = [
    None, True, -1, 0, 10**30, 10**400, 1e300, float("nan"), "", "x", "../../x", "\x1b[2J",
    "[bold]x[/y]", "\ud800", [], {}, [[]], [1], {"x": 1}, "NaN", "Infinity", "2020-01-01",
]  # fmt: skip


def records() -> list[Record]:
    return [
        Record(
            f"{number:016x}",
            {"lr": number / 10, "device": "cpu", "width": [1, 2]},
            state="done" if number else "failed",
            error=None if number else "Traceback (most recent call last):\nValueError: no",
            epochs=[
                {"epoch": epoch, "loss": 1 / epoch, "accuracy": number / 9, "seconds": 0.1}
                for epoch in (1, 2, 3)
            ],
            started=f"2026-01-0{number + 1}",
            seconds=1.5,
            device="cpu",
            device_name="a CPU",
            peak_bytes=2**30,
            seed=0,
            git={"commit": "abc", "changed": False},
            versions={"torch": "2.13"},
            host="here",
        )
        for number in range(RUNS)
    ]


def written(folder: Path) -> None:
    enter(folder, Sheet(["lr", "device", "width"], "train:experiment", [r.key for r in records()]))
    for record in records():
        write(folder, record)


def damaged(folder: Path, chance: random.Random) -> None:
    (folder / "lock").unlink(missing_ok=True)  # it holds nothing
    change_bytes(folder, chance)


def attacked(folder: Path, chance: random.Random) -> None:
    change_json(folder, chance, "2")


def old(folder: Path, chance: random.Random) -> None:
    change_json(folder, chance, "1")


def change_json(folder: Path, chance: random.Random, version: str) -> None:
    file = chance.choice(sorted(folder.rglob("*.json")))
    entry = json.loads(file.read_text())
    del entry["checksum"]
    entry["format"] = f"{entry['format'][:-1]}{version}"
    for _ in range(chance.randint(1, 3)):
        node, key = chance.choice(list(places(entry)))
        if chance.random() < 0.2:
            del node[key]
        elif isinstance(node, dict) and chance.random() < 0.2:
            node[str(chance.choice(ODD))] = node.pop(key)
        else:
            node[key] = chance.choice(ODD)
    text = json.dumps(entry).encode()
    file.write_bytes(HEAD % zlib.crc32(text) + text[1:] if version == "2" else text)


def looked_at(folder: Path, whole: bool) -> str:
    """All that shows records."""
    try:
        results = ad.Results.of(folder)
        assert "\x1b" not in plain_text(results.shown(), width=300)
        results.rows("-lr", every_epoch=True)
        results.rows("loss")
        json.loads(results.to_json().encode())
        results.to_csv(folder / "all.csv")
        if whole:
            results.report()
        if results.damaged:
            return "damaged"
    except UsageError:
        return "refused"
    return "shown"


def fuzzed(count: int, seed: int) -> Counter[str]:
    """How many ended how; what must not happen is an AssertionError."""
    counts: Counter[str] = Counter()
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        way = chance.choice([damaged, attacked, old])
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            written(folder)
            way(folder, chance)
            try:
                ended = looked_at(folder, whole=number % LONG == 0)
                found = read_all(folder)[0] if ended == "shown" else []
            except Exception as error:
                raise AssertionError(f"mutation {number} of seed {seed}: {error!r}") from error
        assert way is not damaged or ended != "shown" or found == records(), number
        counts[f"{way.__name__}: {ended}"] += 1
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for ended, times in sorted(fuzzed(given.count, given.seed).items()):
        print(f"{times:6} {ended}")
