"""Checks the C++ of the native library: each file compiles alone, without a warning, in one format.

`python -m tests.native_lint` (make lint-native) compiles each file alone with g++ and with clang++,
which also does without Linux's own calls, as on macOS.
What it finds clean it remembers in the user's cache, as the library is kept there, and compiles
again only what has changed since.

`--quick` (make test) does the same if few files have changed. Else, as in a fresh clone, g++
compiles the units of the build with their files in reverse order: a file that uses what another
defines, with no header between them, comes first there or in the build itself, and fails.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path

from anydevice.files import write_whole
from anydevice.virtual import build
from anydevice.virtual.cache import cache_dir

KEPT = Path(__file__).parent.parent / "build" / "native-lint"
COMPILERS = ("g++", "clang++")
REVERSED = "g++ reversed"  # what is remembered of the quick way
FLAGS = (
    *("-std=c++20", "-Wall", "-Wextra", "-Wshadow"),
    "-Wno-inconsistent-missing-override",  # torch 2.11 does not have all that 2.13 has us override
)
FORMATTER = "14"  # clang-format's version: others lay out some lines in another way
FEW = 8
PORTABLE = "-DANYDEVICE_PORTABLE"  # without Linux's own calls: what includes this does without
SYSTEM = '#include "system.h"'


def main(arguments: list[str]) -> int:
    quick = "--quick" in arguments
    sound = formatted(native_files("*.cpp", "*.h"))
    for compiler in COMPILERS:
        if not shutil.which(compiler):
            print(f"native: no {compiler} here, so nothing is compiled with it.")
            continue
        changed = [file for file in native_files("*.cpp") if not is_clean(compiler, file)]
        if quick:
            changed = [file for file in changed if not is_clean(REVERSED, file)]
        if not quick or len(changed) <= FEW:
            sound &= report(f"{compiler}, file by file", changed, partial(alone, compiler, changed))
        elif compiler == "g++":
            sound &= report("g++, units in reverse order", changed, in_reverse_order)
    return 0 if sound else 1


def native_files(*patterns: str) -> list[Path]:
    return sorted(file for pattern in patterns for file in build.NATIVE.rglob(pattern))


def report(what: str, files: list[Path], check: Callable[[], list[str]]) -> bool:
    begin = time.monotonic()
    complaints = check() if files else []
    for complaint in complaints:
        print(complaint)
    verdict = "not clean" if complaints else "clean"
    print(f"native: {what}: {len(files)} files {verdict} in {time.monotonic() - begin:.0f} s")
    return not complaints


# ---- compiling


def alone(compiler: str, files: list[Path]) -> list[str]:
    """What the compiler says about each file; remembers those about which it says nothing."""
    states = states_of(compiler, files)  # before: a file may change meanwhile
    compile_ = [compiler, *FLAGS, *includes(), "-fsyntax-only", "-include", precompiled(compiler)]

    def checked(file: Path) -> str:
        said = messages([*compile_, str(file)])
        other = compiler == "clang++" and SYSTEM in content(file)
        return said or (messages([*compile_, PORTABLE, str(file)]) if other else "")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        said = list(pool.map(checked, files))
    remember(
        compiler,
        {key: was for (key, was), text in zip(states.items(), said, strict=True) if not text},
    )
    return [text for text in said if text]


def in_reverse_order() -> list[str]:
    states = states_of(REVERSED, native_files("*.cpp"))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        commands = []
        for unit, files in build.units().items():
            source = Path(folder) / f"{unit}.cpp"
            source.write_text("".join(f'#include "{file}"\n' for file in files[::-1]), "utf-8")
            commands.append(["g++", *FLAGS, *includes(), "-fsyntax-only", str(source)])
        said = [text for text in pool.map(messages, commands) if text]
    if not said:
        remember(REVERSED, states)
    return said


def precompiled(compiler: str) -> str:
    """The torch headers of anydevice.h: they take ten seconds to read, and one when precompiled."""
    text = "".join(re.findall(r"#include <.*\n", (build.NATIVE / "anydevice.h").read_text("utf-8")))
    header = KEPT / f"{compiler}-{digest(described(compiler), text)}" / "torch.h"
    made = header.with_suffix(".h.pch" if compiler == "clang++" else ".h.gch")
    if not made.exists():
        for outdated in KEPT.glob(f"{compiler}-*"):
            shutil.rmtree(outdated)
        header.parent.mkdir(parents=True)
        header.write_text(text, "utf-8")
        more = ["-fpch-instantiate-templates"] if compiler == "clang++" else []
        unfinished = made.with_suffix(".unfinished")
        command = [compiler, *FLAGS, *includes(), *more, "-x", "c++-header", str(header)]
        subprocess.run([*command, "-o", str(unfinished)], check=True)
        unfinished.rename(made)
    return str(header)


def includes() -> list[str]:
    system = (build.headers(), build.headers() / "torch/csrc/api/include")
    return [f"-iquote{build.NATIVE}", *(f"-isystem{folder}" for folder in system)]


def messages(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    return said or (f"{command[0]} ended with {done.returncode}" if done.returncode else "")


# ---- what was found clean before


def is_clean(how: str, file: Path) -> bool:
    return known().get(how, {}).get(name(file)) == state(how, file)


def remember(how: str, states: dict[str, str]) -> None:
    everything = known()
    everything.setdefault(how, {}).update(states)
    verdicts().parent.mkdir(parents=True, exist_ok=True)
    write_whole(verdicts(), json.dumps(everything, indent=1).encode())


def verdicts() -> Path:
    return cache_dir() / "native-lint" / "clean.json"


def known() -> dict[str, dict[str, str]]:
    try:
        return json.loads(verdicts().read_text("utf-8"))
    except (OSError, ValueError):
        return {}


def name(file: Path) -> str:
    return file.relative_to(build.NATIVE).as_posix()


def state(how: str, file: Path) -> str:
    """Names everything that the verdict on a file depends on."""
    own = sorted(reached(file))
    return digest(described(how.split()[0]), *map(name, own), *map(content, own))


def states_of(how: str, files: list[Path]) -> dict[str, str]:
    return {name(file): state(how, file) for file in files}


def reached(file: Path) -> set[Path]:
    """A file of ours and what it includes of ours, directly or not."""
    found: set[Path] = set()
    waiting = [file]
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            for included in re.findall(r'#include "(.*)"', content(file)):
                places = (file.parent / included, build.NATIVE / included)
                waiting += [place for place in places if place.exists()][:1]
    return found


@cache
def content(file: Path) -> str:
    return file.read_text("utf-8")


@cache
def described(compiler: str) -> str:
    asked = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    return f"{asked.stdout} {version('torch')} {FLAGS}"


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


# ---- the format


def formatted(files: list[Path]) -> bool:
    command = formatter()
    if command is None:
        print(f"native: no clang-format {FORMATTER} here, so the format is not checked.")
        return True
    check = [command, "--dry-run", "-Werror", "-ferror-limit=20", *map(str, files)]
    return report("clang-format", files, lambda: [text for text in [messages(check)] if text])


def formatter() -> str | None:
    """That of the development packages, or the system's."""
    for command in (str(Path(sys.executable).with_name("clang-format")), "clang-format"):
        if shutil.which(command) and f"version {FORMATTER}." in messages([command, "--version"]):
            return command
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
