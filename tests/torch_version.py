"""What works on the torch of this environment: a row of docs/versions.md.

`make test-torch VERSION=2.15.0` makes an environment with that torch under build/ and runs this in
it: builds the native library, compares a spread of ops with the CPU, runs the tests of virtual/ and
plan/ and the examples, and measures the overhead. `--only PART` runs one part and keeps the others.

The rows are in docs/versions.json; docs/versions.md is written from them. There a row may have a
note, such as the reason of a failure.
"""

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parent.parent
CACHE = ROOT / "build" / f"cache-{version('torch')}"  # of the library that is tested
ROWS, PAGE = ROOT / "docs" / "versions.json", ROOT / "docs" / "versions.md"

HEAD = """\
# Versions of PyTorch

Each row is one run of `make test-torch VERSION=…`, which writes this page, on a machine without a
GPU. "Build" is the processor's time for the native library, which two compilers share. "Does not
match" counts the parts of virtual GPUs that are left out with that torch, which
`anydevice devices --issue` lists. "Conformance" is a spread of PyTorch's own test cases, compared
with the CPU. "Step" is a training step on a virtual GPU over the same step on the CPU. Slow tests
are not in these figures.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="repeatable")
    chosen = parser.parse_args().only or list(PARTS)
    for part in chosen:
        print(f"{version('torch')}: {part} …", flush=True)
        found = PARTS[part]()
        print(f"  {found}", flush=True)
        rows = json.loads(ROWS.read_text("utf-8")) if ROWS.exists() else {}
        row = rows.setdefault(version("torch"), {})
        row |= {part: found, "on": date.today().isoformat()}
        ROWS.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", "utf-8")
        PAGE.write_text(page(rows), "utf-8")
    return int(any("failed" in row[part] or "wrong" in row[part] for part in chosen))


def page(rows: dict[str, dict[str, str]]) -> str:
    """The table, a torch a row, the newest first."""
    newest_first = sorted(rows, key=lambda name: [int(n) for n in re.findall(r"\d+", name)[:3]])
    lines = [
        "| torch | " + " | ".join(PARTS) + " | on |",
        "| --- |" + " --- |" * (len(PARTS) + 1),
    ]
    for name in newest_first[::-1]:
        cells = [rows[name].get(part, "not run") for part in (*PARTS, "on")]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    notes = [
        f"- {name}: {rows[name]['note']}" for name in newest_first[::-1] if "note" in rows[name]
    ]
    lines += ["", *notes] if notes else []
    return HEAD + "\n" + "\n".join(lines) + "\n"


def built() -> str:
    """The native library from nothing: the time of the processor, for other work may run, too."""
    shutil.rmtree(CACHE, ignore_errors=True)
    before = children_seconds()
    done = python("-m", "anydevice.virtual.build")
    print(done.stderr if done.returncode else "", end="")
    return "failed" if done.returncode else f"{children_seconds() - before:.0f} s"


def children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def left_out() -> str:
    """How many parts of virtual GPUs do not match this torch."""
    done = python("-c", "from anydevice.virtual import versions; print(versions.report()[0])")
    found = re.search(r"(\d+) of their parts", done.stdout)
    return found[1] if found else "failed"


def conformance() -> str:
    """A spread of cases of every kind, as the CPU computes them."""
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Path(folder) / "outcomes.json"
        done = python("-m", "tests.conformance", "--fast", "--json", outcomes)
        print(done.stdout if done.returncode else "", end="")
        if not outcomes.exists():
            return "failed"
        count = len(json.loads(outcomes.read_text("utf-8")))
    return f"{count} cases" + (" (some wrong)" if done.returncode else "")


def passed(*tests: str) -> Callable[[], str]:
    """Runs tests; "740 passed, 2 failed"."""

    def run() -> str:
        options = ("-n", "2", "--dist", "worksteal", "-m", "not long and not slow")
        done = python("-m", "pytest", "-q", *options, *tests)
        (CACHE / "pytest.log").write_text(done.stdout, "utf-8")
        print(*re.findall(r"^(?:FAILED|ERROR) \S+", done.stdout, re.MULTILINE), sep="\n")
        last = done.stdout.strip().splitlines()[-1:] or ["failed"]
        return ", ".join(re.findall(r"\d+ (?:passed|failed|errors?)", last[0])) or "failed"

    return run


def overhead() -> str:
    """A training step on a virtual GPU over one on the CPU: the median of the networks."""
    done = python("benchmarks/virtual_overhead.py", "--json", "--pairs", "15")
    try:
        figures = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return "failed"
    return "; ".join(f"{f['what']} {f['measured']:.2f} {f['unit']}".strip() for f in figures[:2])


def python(*words: str | Path) -> subprocess.CompletedProcess[str]:
    CACHE.mkdir(0o700, parents=True, exist_ok=True)
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "XDG_CACHE_HOME": str(CACHE)},
        capture_output=True,
        text=True,
        check=False,
    )


PARTS: dict[str, Callable[[], str]] = {
    "build": built,
    "does not match": left_out,
    "conformance": conformance,
    "tests/virtual": passed("tests/virtual"),
    "tests/plan": passed("tests/plan"),
    "examples": passed("tests/test_examples.py", "tests/test_readme.py"),
    "step": overhead,
}


if __name__ == "__main__":
    sys.exit(main())
