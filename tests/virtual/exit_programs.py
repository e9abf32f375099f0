"""A hundred short programs as users write them: each must end by itself, with its own exit code.

exit_programs.txt holds them, each under a line with its name and, unless it is 0, its exit code.
Each runs after what stands before them all, in `make conformance` in a fresh interpreter; one that
ends with 0 must have reached its last line. None leaves a daemon thread inside an op: PyTorch
aborts then on the CPU too.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

LIMIT_S = 120
Run = Callable[[Path], subprocess.CompletedProcess[str]]
SIGNS_OF_A_CRASH = ("terminate called", "Fatal Python error", "Segmentation fault", "core dumped")


def programs() -> dict[str, tuple[str, int]]:
    """Each program's text and exit code, by name."""
    text = Path(__file__).with_suffix(".txt").read_text()
    (_, before), *parts = [part.split("\n", 1) for part in ("\n" + text).split("\n=== ")[1:]]
    found = {}
    for heading, body in parts:
        name, _, code = heading.partition(" [")
        found[name] = (f"{before}\n{body}\n", int(code.rstrip("]") or 0))
    return found


def fresh(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=os.environ | {"OMP_NUM_THREADS": "2"},
    )


def complaint(name: str, run: Run = fresh) -> str | None:
    """What is wrong with how the program ended, or None."""
    text, code = programs()[name]
    text += "" if code else '\nprint("end", flush=True)\n'
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "program.py")  # a file, for workers that are spawned import it
        path.write_text(text)
        try:
            ended = run(path)
        except subprocess.TimeoutExpired:
            return f"hung for {LIMIT_S} s"
    last_words = " ".join(ended.stderr.split())[-300:]
    if ended.returncode != code:
        return f"ended with {ended.returncode}, not {code}: {last_words}"
    if not code and "end" not in ended.stdout.split():
        return "ended before its last line"
    return next((f"printed {sign!r}" for sign in SIGNS_OF_A_CRASH if sign in ended.stderr), None)
