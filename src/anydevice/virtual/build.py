"""The native library: compiled once for each torch, with the compiler at hand.

`python -m anydevice.virtual.build` builds it ahead of time; `--clean` removes those whose torch is
gone, and those of earlier sources.

Note [Checksums]
A library that is half there ends the process with SIGBUS as it is loaded, or leaves torch half
imported. So a JSON file next to it has its size and CRC-32, and every start compares them: 1 ms for
2.5 MB, where SHA-256 takes 3 to 7. A CRC finds damage. It does not need to find an attacker, who
could replace the JSON file as well: cache.py keeps others from writing here.
"""

import errno
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from anydevice.errors import UsageError
from anydevice.files import lock, locked, sync, write_whole
from anydevice.virtual import cache

NATIVE = Path(__file__).parent / "native"
FLAGS = ("-std=c++20", "-O2", "-g0", "-fno-math-errno", "-fPIC", "-fvisibility=hidden", "-w")
COMPILERS = ("c++", "g++", "clang++")
# Two units, compiled at the same time: torch's headers cost the most, so few units are best.
UNITS = {
    "core": (".", "runtime", "dispatch", "memory", "collectives"),
    "kernels": ("random", "kernels"),
}
LIBRARY = "anydevice_virtual.so"
LOCK = "lock"
UNFINISHED = "unfinished-"
DAYS_KEPT = 30
ROOM = 32 << 20  # bytes, which compiling takes at the most


class BuildError(UsageError, RuntimeError):
    """There can be no virtual GPUs with this torch; the message says why and what to do."""


def library() -> Path:
    """The library for this torch, built if it is not there yet, or is damaged."""
    try:
        path = cache.folder(_key()) / LIBRARY
        if not _is_whole(path):
            with locked(path.with_name(LOCK), mode=cache.MODE):  # others wait, and find it built
                if not _is_whole(path):
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


def is_built() -> bool:
    """Whether the library for this torch is there already."""
    return _is_whole(cache.cache_dir() / _key() / LIBRARY)


def clean() -> list[tuple[Path, str]]:
    """Removes libraries that nothing here can load any more; their folders, and why."""
    removed = []
    for folder in sorted(cache.cache_dir().glob("torch-*")):
        why = _gone(folder)
        if why and not folder.is_symlink() and not _in_use(folder):
            shutil.rmtree(folder)
            removed.append((folder, why))
    return removed


def _is_whole(path: Path) -> bool:
    """Whether the library is there as it was built."""
    made = _made(path.parent)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return False
    return (made.get("bytes"), made.get("crc32")) == (len(content), zlib.crc32(content))


def _made(folder: Path) -> dict[str, Any]:
    """What was written down about the library as it was built; empty if that cannot be read."""
    try:
        made = json.loads(_record(folder).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return made if isinstance(made, dict) else {}


def _write_down(path: Path) -> None:
    """What `_is_whole` and `_gone` compare."""
    content = path.read_bytes()
    made = {
        "bytes": len(content),
        "crc32": zlib.crc32(content),
        "torch": str(_torch()),
        "version": torch_version(),
        "anydevice": str(NATIVE),
    }
    write_whole(_record(path.parent), json.dumps(made, indent=2).encode(), mode=cache.MODE)


def _record(folder: Path) -> Path:
    return folder / "anydevice_virtual.json"


def _gone(folder: Path) -> str | None:
    """Why nothing can load the library of a folder any more."""
    made = _made(folder)
    if folder.name == _key():
        return None
    if not made:
        return "not whole"
    try:
        torch = Path(made["torch"], "version.py").read_text("utf-8")
    except OSError:
        torch = ""
    if f"'{made['version']}'" not in torch:
        return f"there is no torch {made['version']} in {made['torch']} any more"
    if not Path(made["anydevice"]).exists() or made["anydevice"] == str(NATIVE):
        return "of earlier sources"
    return None


def _in_use(folder: Path) -> bool:
    """Whether a process builds the library just now."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        return not lock(descriptor, wait=False)
    finally:
        os.close(descriptor)


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
        log.touch(mode=cache.MODE)
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
                f"{command[0]} could not compile the virtual GPU for torch {torch_version()}; "
                f"its messages are in {log}."
            )
        cache.keep_from_others(unfinished)
        sync(unfinished)
        os.replace(unfinished, path)
        _write_down(path)
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
        loaded = folder / LIBRARY
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
    return f"torch-{torch_version()}-{made_from.hexdigest()[:16]}"


def _torch() -> Path:
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildError("the virtual GPU is built against torch, and torch is not installed.")
    return Path(spec.origin).parent


def torch_version() -> str:
    """The version of torch that is installed."""
    return version("torch")


def main(arguments: list[str]) -> None:
    """Builds the library, or removes those that nothing can load any more."""
    if arguments not in ([], ["--clean"]):
        raise UsageError(f"expected --clean or nothing, got {' '.join(arguments)}.")
    if not arguments:
        print(library())
        return
    removed = clean()
    for folder, why in removed:
        print(f"removed {folder}: {why}")
    print(f"{len(removed)} removed from {cache.cache_dir()}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (BuildError, UsageError) as error:
        sys.exit(f"anydevice: {error}")
