"""What Linux has and other systems lack: a function for each, with a branch for both.

Note [Two branches]
Linux's branch is the better one: it forks what has imported torch, hears at once of a process that
ended, and asks the kernel about the machine. macOS has none of that, so the other branch does with
what every POSIX system has. `LINUX` chooses, here and in the rooms above; ANYDEVICE_PORTABLE=1
chooses the portable branch on Linux too, and so `make test-portable` runs it. The native library
asks the same in native/system.h.
"""

import ctypes
import faulthandler
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anydevice.files import lives

PORTABLE = "ANYDEVICE_PORTABLE"
LINUX = sys.platform == "linux" and os.environ.get(PORTABLE) != "1"
MACOS = sys.platform == "darwin"

LOOK = 0.05  # seconds between two looks at a process
_open, _getcwd = os.open, os.getcwd  # a plan replaces these

NEW_PYTHON = "import sys; sys.path[:] = {!r}; from {} import {} as main; main({})"


# ---- the machine


def kernel_lines(path: str) -> list[str]:
    """What a file in /proc or /sys says; nothing elsewhere, or where there is no such file."""
    try:
        return Path(path).read_text().splitlines() if LINUX else []
    except OSError:
        return []


def maps_users() -> bool:
    """Whether this process is in a namespace of users, as in a container: not all are known."""
    mapping = " ".join(kernel_lines("/proc/self/uid_map")).split()
    return mapping not in ([], ["0", "0", str(2**32 - 1)])


def kernel_files(pattern: str) -> list[Path]:
    """The files in /sys of this pattern; none elsewhere."""
    return sorted(Path("/").glob(pattern.lstrip("/"))) if LINUX else []


def sysctl(name: str) -> str:
    """A figure of macOS; empty elsewhere."""
    if not MACOS:
        return ""
    return subprocess.run(["sysctl", "-n", name], capture_output=True, text=True).stdout.strip()


def usable_cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if LINUX else os.cpu_count() or 1


def memory() -> int:
    """The bytes that the machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def peak_memory() -> int:
    """The most bytes that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if MACOS else 1024)


def process_space() -> str:
    """The same for processes that see each other's numbers: containers on one host may not."""
    space = "/proc/self/ns/pid"
    return os.readlink(space) if LINUX and os.path.exists(space) else ""


# ---- libraries


def library_file(name: str) -> str:
    """What a library's file is called: `libc10.so`."""
    return f"{name}.dylib" if MACOS else f"{name}.so"


def link_flags(libraries: Path) -> tuple[str, ...]:
    """For a library that uses torch's: macOS finds those by a path that is written into it."""
    return (f"-Wl,-rpath,{libraries}", "-undefined", "dynamic_lookup") if MACOS else ()


# ---- files


def folder_of(descriptor: int) -> str:
    """The path of a folder that is open."""
    if LINUX:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    here = _open(".", os.O_RDONLY)
    try:
        os.fchdir(descriptor)
        return _getcwd()
    finally:
        os.fchdir(here)
        os.close(here)


def send_open_file(line: int, descriptor: int) -> None:
    """Through a socket, without waiting for the receiver as multiprocessing.reduction does.

    From Python 3.14 on that takes any byte that comes next for the receiver's reply.
    """
    with socket.socket(fileno=os.dup(line)) as sending:
        socket.send_fds(sending, [b"."], [descriptor])


def received_open_file(line: int) -> int:
    """What send_open_file sent; EOFError if the sender has ended."""
    with socket.socket(fileno=os.dup(line)) as receiving:
        _, descriptors, *_ = socket.recv_fds(receiving, 1, 1)
    if not descriptors:
        raise EOFError
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]


# ---- processes


def show_crashes(file: int, *, all_threads: bool = True) -> None:
    """Python's lines at a crash, without those of native code, which 3.14 would add below them."""
    options: dict[str, Any] = {"c_stack": False} if sys.version_info >= (3, 14) else {}
    faulthandler.enable(file, all_threads, **options)


def fork() -> int:
    """As os.fork(), without the warning about threads, which Python gives from 3.12 on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def new_python(module: str, function: str, *descriptors: int) -> int:
    """The number of a new Python's process, which calls the function with these open files.

    It leads a new process group. The caller waits for it, with os.waitpid.
    """
    code = NEW_PYTHON.format(sys.path, module, function, ", ".join(map(str, descriptors)))
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    try:
        command = [sys.executable, "-c", code]
        return os.posix_spawn(sys.executable, command, os.environ, setpgroup=0)
    finally:
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)


def end_with(parent: int, lifeline: int | None = None) -> None:
    """Ends this process when its parent ends, even if that is killed.

    Args:
        parent: The parent's number.
        lifeline: A descriptor that only the parent keeps from its end. Where the kernel cannot be
            asked, a thread reads it.
    """
    if LINUX:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)
    elif lifeline is not None:
        threading.Thread(target=_end_after, args=(lifeline,), daemon=True).start()


def _end_after(lifeline: int) -> None:
    while os.read(lifeline, 4096):
        pass
    os.killpg(0, signal.SIGKILL)


def ends(processes: Sequence[int]) -> list[int]:
    """A descriptor for each process, which can be read once that has ended."""
    return [_end_of(process) if LINUX else _end_by_looking(process) for process in processes]


def _end_of(process: int) -> int:
    try:
        return os.pidfd_open(process)
    except ProcessLookupError:
        reading, writing = os.pipe()
        os.close(writing)  # at its end, it can be read already
        return reading


def _end_by_looking(process: int) -> int:
    reading, writing = os.pipe()

    def look() -> None:
        reader = select.poll()
        reader.register(writing, 0)
        while lives(str(process)) and not reader.poll(1000 * LOOK):  # nor has the reader closed it
            pass
        os.close(writing)

    threading.Thread(target=look, daemon=True).start()
    return reading
