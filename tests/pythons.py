"""A part of the tests with each Python that is here: make test-python.

`python -m tests.pythons [PYTHON ...]` makes a separate environment for each of them, in
build/python-3.12 and so on, with the torch of constraints.txt: on Linux the CUDA build, about 5 GB.

In each it compiles every source and runs the tests that tests/slow.txt does not name.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
MINORS = range(11, 20)
SOURCES = ("src", "tests", "benchmarks", "docs", "examples")
UNFINISHED = "tests/check/programs"  # a test makes two programs of each
TESTS = ("-q", "-n", "2", "--dist", "worksteal", "-m", "not long and not slow")


def main(given: Sequence[str]) -> int:
    pythons = [resolved(name) for name in given] or found()
    failed = [python for python in pythons if not passes(python)]
    print(f"{len(pythons) - len(failed)} of {len(pythons)} Pythons passed", *failed)
    return 1 if failed or not pythons else 0


def found() -> list[str]:
    """One of each version from 3.11 on: that of the PATH, or else of pyenv."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places = {}
    for minor in MINORS:
        of_pyenv = sorted(versions.glob(f"3.{minor}.*/bin/python"))
        candidates = [shutil.which(f"python3.{minor}"), *map(str, of_pyenv[-1:])]
        works = [python for python in candidates if python and answers(python)]
        places.update({minor: works[0]} if works else {})
    return list(places.values())


def answers(python: str) -> bool:
    """pyenv puts a name on the PATH for each version, also where it is not chosen."""
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def resolved(name: str) -> str:
    python = shutil.which(name)
    if python is None:
        raise SystemExit(f"expected a Python, got {name}, which is not there.")
    return python


def passes(python: str) -> bool:
    own = environment(python)
    compiles = [str(own), "-W", "error", "-m", "compileall", "-q", "-f"]
    compiles += ["-x", UNFINISHED, *SOURCES]
    tests = [str(own), "-m", "pytest", *TESTS]
    print(f"== {python}: {own.parents[1].name}", flush=True)
    return all(
        subprocess.run(command, cwd=ROOT, check=False).returncode == 0
        for command in (compiles, tests)
    )


def environment(python: str) -> Path:
    """The Python of an environment with this Python, made if it is not there yet."""
    said = subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.findall(r"3\.\d+", said)[0]
    folder = ROOT / "build" / f"python-{version}"
    own = folder / "bin" / "python"
    if not (folder / "installed").exists():
        torch = re.findall(r"^torch==.*", (ROOT / "constraints.txt").read_text(), re.M)[0]
        subprocess.run([python, "-m", "venv", folder], check=True)
        pip = [own, "-m", "pip", "install", "--quiet", torch, "--editable", ".[dev]"]
        subprocess.run(pip, cwd=ROOT, check=True)
        (folder / "installed").touch()
    return own


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
