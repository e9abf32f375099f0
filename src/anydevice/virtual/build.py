"""The native library: compiled once for each torch, with the compiler at hand.

`python -m anydevice.virtual.build` builds it ahead of time; `--clean` removes those whose torch is
gone, and those of earlier sources; `--ready` also copies it into the package, for a wheel which
needs no compiler (make wheels).

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
import re
import shlex
import shutil
import sys
import time
import zlib
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from anydevice import system
from anydevice.errors import UsageError
from anydevice.files import lock, locked, sync, write_whole
from anydevice.virtual import cache, jobs, ops
from anydevice.virtual.jobs import JobFailed, Progress

NATIVE = Path(__file__).parent / "native"
READY = Path(__file__).parent / "ready"  # libraries that a wheel carries, if it does
# PyTorch is built with NDEBUG: without it, each use of its headers checks itself.
FLAGS = (
    "-std=c++20", "-DNDEBUG", "-g0", "-fno-math-errno", "-fPIC", "-fvisibility=hidden", "-w",
)  # fmt: skip
COMPILERS = ("c++", "g++", "clang++")
# Two units, compiled at the same time: torch's headers cost the most, so few units are best.
UNITS = {
    "core": (".", "runtime", "dispatch", "memory", "random"),
    "kernels": ("kernels", "collectives"),
}
# core runs at each op; kernels calls PyTorch for what takes time, and compiles in three quarters.
OPTIMISED = {"core": "-O2", "kernels": "-O1"}
LIBRARY = system.library_file("anydevice_virtual")
LOCK = "lock"
UNFINISHED = "unfinished"  # the folder of a build, and what an interrupted one left
PART, OBJECT = ".part", ".o"
DAYS_KEPT = 30
ROOM = 32 << 20  # bytes, which compiling takes at the most


class BuildError(UsageError, RuntimeError):
    """There can be no virtual GPUs with this torch; the message says why and what to do."""


def library() -> Path:
    """The library for this torch, built if it is not there yet, or is damaged."""
    ready = READY / _ready_key() / LIBRARY
    if _is_whole(ready):
        return ready
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
    folders = READY / _ready_key(), cache.cache_dir() / _key()
    return any(_is_whole(folder / LIBRARY) for folder in folders)


def make_ready() -> Path:
    """Copies the library for this torch, and its list of ops, into the package."""
    built = library()
    ready = READY / _ready_key()
    if built.parent != ready:
        ready.mkdir(parents=True, exist_ok=True)
        shutil.copy(built, ready)
        whole = {name: _made(built.parent)[name] for name in ("bytes", "crc32")}
        write_whole(_record(ready), json.dumps(whole).encode(), mode=cache.MODE)
        ops.kept_op_list(ready)
    return ready / LIBRARY


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
    if not re.search(rf"'{re.escape(made['version'])}['+]", torch):  # '2.15.0+cu132' is 2.15.0
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
    progress = Progress("building the virtual GPU (once, about a minute)")
    folder = path.with_name(UNFINISHED)
    folder.mkdir(mode=0o700, exist_ok=True)
    log = path.with_name("build.log")
    log.touch(mode=cache.MODE)
    try:
        with log.open("w", encoding="utf-8") as output:
            _compile(command, folder, output, progress)
            _link(command, folder, output, progress)
    except JobFailed as error:
        progress.clear()
        if shutil.disk_usage(path.parent).free < ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise BuildError(
            f"{command[0]} could not compile the virtual GPU for torch {torch_version()}; "
            f"its messages are in {log}."
        ) from error
    os.replace(folder / LIBRARY, path)
    _write_down(path)
    shutil.rmtree(folder)
    progress.say(f"built in {progress.seconds()}, kept in {path.parent}")


def _compile(compiler: list[str], folder: Path, output: IO[str], progress: Progress) -> None:
    """Compiles the units whose objects an interrupted build did not leave in the folder."""
    for left in folder.iterdir():
        if left.suffix != OBJECT:
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    commands = {
        name: command
        for name, command in _compile_commands(compiler, folder).items()
        if not (folder / name).with_suffix(OBJECT).exists()
    }
    for name in jobs.run(commands, folder, output, progress):
        _finish((folder / name).with_suffix(PART), (folder / name).with_suffix(OBJECT))


def _compile_commands(compiler: list[str], folder: Path) -> dict[str, list[str]]:
    include = ["-include", str(NATIVE / "old_libc.h"), f"-iquote{NATIVE}"]
    include += [f"-I{headers()}", f"-I{headers() / 'torch/csrc/api/include'}"]
    commands = {}
    for name, parts in units().items():
        unit = folder / f"{name}.cpp"
        unit.write_text("".join(f'#include "{part}"\n' for part in parts), "utf-8")
        to = str(unit.with_suffix(PART))
        commands[name] = [
            *compiler, *FLAGS, OPTIMISED[name], *include, "-c", str(unit), "-o", to
        ]  # fmt: skip
    return commands


def _link(compiler: list[str], folder: Path, output: IO[str], progress: Progress) -> None:
    objects = [str((folder / name).with_suffix(OBJECT)) for name in units()]
    libraries = _torch() / "lib"
    torch = [f"-L{libraries}", "-ltorch_cpu", "-lc10", *system.link_flags(libraries)]
    unfinished = (folder / LIBRARY).with_suffix(PART)
    command = [*compiler, "-shared", *objects, *torch, "-o", str(unfinished)]
    try:
        for _ in jobs.run({"linking": command}, folder, output, progress):
            cache.keep_from_others(unfinished)
            _finish(unfinished, folder / LIBRARY)
    except JobFailed:
        shutil.rmtree(folder)  # the next build should not try the same objects again
        raise


def _finish(unfinished: Path, path: Path) -> None:
    sync(unfinished)
    os.replace(unfinished, path)


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
    return _named(torch_version(), os.environ.get("CXX", ""))


def _ready_key() -> str:
    """The name of a library that a wheel carries: PyTorch's builds of a release for the CPU and for
    CUDA have the same headers, so that each loads what was built against the other."""
    return _named(re.sub(r"\+(cpu|cu\d+)$", "", torch_version()), compiler="")


def _named(torch: str, compiler: str) -> str:
    made_with = (*FLAGS, *OPTIMISED.values(), compiler, platform.machine())
    made_from = hashlib.sha256(" ".join(made_with).encode())
    for file in sorted((*NATIVE.rglob("*.cpp"), *NATIVE.rglob("*.h"))):
        made_from.update(file.relative_to(NATIVE).as_posix().encode() + file.read_bytes())
    return f"torch-{torch}-{made_from.hexdigest()[:16]}"


def _torch() -> Path:
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildError("the virtual GPU is built against torch, and torch is not installed.")
    return Path(spec.origin).parent


def torch_version() -> str:
    """The version of torch that is installed."""
    return version("torch")


def main(arguments: list[str]) -> None:
    """Builds the library, makes it ready for a wheel, or removes those that nothing can load."""
    if arguments not in ([], ["--ready"], ["--clean"]):
        raise UsageError(f"expected --ready, --clean or nothing, got {' '.join(arguments)}.")
    if arguments != ["--clean"]:
        print(make_ready() if arguments else library())
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
