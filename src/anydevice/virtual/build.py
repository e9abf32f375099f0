"""The native library: compiled once for each torch, with the compiler at hand.

`python -m anydevice.virtual.build` builds it ahead of time.
"""

import errno
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from anydevice.files import locked, sync

NATIVE = Path(__file__).parent / "native"
FLAGS = ("-std=c++20", "-O2", "-g0", "-fno-math-errno", "-fPIC", "-fvisibility=hidden", "-w")
COMPILERS = ("c++", "g++", "clang++")
# Two units, compiled at the same time: torch's headers cost the most, so few units are best.
UNITS = {
    "core": (".", "runtime", "dispatch", "memory", "collectives"),
    "kernels": ("random", "kernels"),
}
UNFINISHED = "unfinished-"
DAYS_KEPT = 30
ROOM = 32 << 20  # bytes, which compiling takes at the most


class BuildError(RuntimeError):
    """The native library could not be built; the message says what to do."""


def library() -> Path:
    """The library for this torch, built if it is not there yet."""
    try:
        path = cache_dir() / _key() / "anydevice_virtual.so"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with locked(path.with_name("lock")):  # one process builds, others find it built
                if not path.exists():
                    _build(path)
                    _remove_unused(path.parent)
    except OSError as error:  # read-only, full, or no directory at all
        raise BuildError(
            f"the virtual GPU's library cannot be kept ({error}): "
            "set XDG_CACHE_HOME to a directory that can be written."
        ) from error
    with suppress(OSError):  # a cache that others filled may be read-only
        os.utime(path)
    return path


def cache_dir() -> Path:
    """Where what is built is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anydevice"


def units() -> dict[str, list[Path]]:
    """The source files of each unit."""
    listed = {NATIVE / folder for folders in UNITS.values() for folder in folders}
    if missing := {file.parent for file in NATIVE.rglob("*.cpp")} - listed:
        names = ", ".join(sorted(folder.name for folder in missing))
        raise BuildError(f"expected every folder of sources in build.UNITS; add {names} to a unit.")
    return {
        unit: [file for folder in folders for file in sorted((NATIVE / folder).glob("*.cpp"))]
        for unit, folders in UNITS.items()
    }


def _build(path: Path) -> None:
    command = compiler()
    print("anydevice: building the virtual GPU, once for this torch …", file=sys.stderr, flush=True)
    begin = time.monotonic()
    for interrupted in path.parent.glob(f"{UNFINISHED}*"):
        shutil.rmtree(interrupted)
    with TemporaryDirectory(dir=path.parent, prefix=UNFINISHED) as folder:
        unfinished = Path(folder) / path.name
        log = path.with_name("build.log")
        with log.open("w", encoding="utf-8") as output:
            compiling = [
                subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
                for command in _compile_commands(command, Path(folder))
            ]
            codes = [process.wait() for process in compiling]
            failed = any(codes) or subprocess.call(
                _link_command(command, Path(folder), unfinished),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        if failed:
            if shutil.disk_usage(folder).free < ROOM:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise BuildError(
                f"{command[0]} could not compile the virtual GPU for torch {_torch_version()}; "
                f"its messages are in {log}."
            )
        sync(unfinished)  # loading a library that is half there ends the process
        os.replace(unfinished, path)
    took = time.monotonic() - begin
    print(f"anydevice: built in {took:.0f} s, kept in {path.parent}", file=sys.stderr, flush=True)


def _compile_commands(compiler: list[str], folder: Path) -> Iterator[list[str]]:
    include = [f"-iquote{NATIVE}", f"-I{headers()}", f"-I{headers() / 'torch/csrc/api/include'}"]
    for name, parts in units().items():
        unit = folder / f"{name}.cpp"
        unit.write_text("".join(f'#include "{part}"\n' for part in parts), "utf-8")
        yield [*compiler, *FLAGS, *include, "-c", str(unit), "-o", str(unit.with_suffix(".o"))]


def _link_command(compiler: list[str], folder: Path, library: Path) -> list[str]:
    objects = [str(folder / f"{name}.o") for name in units()]
    torch = ["-L" + str(_torch() / "lib"), "-ltorch_cpu", "-lc10"]
    return [*compiler, "-shared", *objects, *torch, "-o", str(library)]


def headers() -> Path:
    """Where torch keeps its C++ headers."""
    return _torch() / "include"


def _remove_unused(used: Path) -> None:
    """Libraries of other torches and other sources, once nobody has loaded them for a while."""
    unused = time.time() - DAYS_KEPT * 24 * 3600
    for folder in used.parent.glob("torch-*"):
        loaded = folder / "anydevice_virtual.so"
        if folder != used and loaded.exists() and loaded.stat().st_mtime < unused:
            shutil.rmtree(folder, ignore_errors=True)


def compiler() -> list[str]:
    """The compiler at hand, or CXX, as a command."""
    try:
        chosen = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise BuildError(
            f"expected a compiler's command in CXX, got {os.environ['CXX']!r} ({error})."
        ) from error
    for candidate in [chosen] if chosen else [[name] for name in COMPILERS]:
        if shutil.which(candidate[0]):
            return candidate
    wanted = f"CXX={chosen[0]}" if chosen else "a C++ compiler (c++, g++ or clang++)"
    raise BuildError(
        f"building the virtual GPU needs {wanted}, and none is on the PATH: "
        "install the package g++ (Debian, Ubuntu), gcc-c++ (Fedora) or Xcode's command line tools."
    )


def _key() -> str:
    """Names torch's version and everything else that the library is made from."""
    made_with = (*FLAGS, os.environ.get("CXX", ""), platform.machine())
    made_from = hashlib.sha256(" ".join(made_with).encode())
    for file in sorted((*NATIVE.rglob("*.cpp"), *NATIVE.rglob("*.h"))):
        made_from.update(file.relative_to(NATIVE).as_posix().encode() + file.read_bytes())
    return f"torch-{_torch_version()}-{made_from.hexdigest()[:16]}"


def _torch() -> Path:
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildError("the virtual GPU is built against torch, and torch is not installed.")
    return Path(spec.origin).parent


def _torch_version() -> str:
    return version("torch")


if __name__ == "__main__":
    try:
        print(library())
    except BuildError as error:
        sys.exit(f"anydevice: {error}")
