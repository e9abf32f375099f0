"""Files and folders written whole: under a temporary name, to the disk, then renamed.

After a kill or on a full disk, nothing half written is ever under the name.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

UNFINISHED = ".unfinished-"


def write_whole(path: Path, data: bytes | bytearray | memoryview, *, mode: int = 0o666) -> None:
    """Puts a file with this content under its name, over one that was there."""
    unfinished = path.with_name(f"{UNFINISHED}{os.getpid()}-{path.name}")
    try:
        write_through(unfinished, data, mode=mode)
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_named(path: Path, data: bytes, *, folder: bool = False) -> None:
    """`write_whole` to a file that the user named; the error says which one, and why.

    Args:
        path: The file.
        data: Its content.
        folder: Whether its folder is made, if it is not there.
    """
    try:
        if folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
    except OSError as error:
        why = error.strerror or error
        raise OSError(f"{path} could not be written ({why}): name another file.") from error


def write_through(path: Path, data: bytes | bytearray | memoryview, *, mode: int = 0o666) -> None:
    """Writes a new file and waits until the disk has it."""
    rest = memoryview(data)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name when the block ends well and is gone otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(mkdtemp(prefix=f"{UNFINISHED}{os.getpid()}-", dir=path.parent))
    try:
        yield unfinished
        unfinished.chmod(0o777 & ~_umask())  # mkdtemp's are for the owner alone
        sync(unfinished)
        os.rename(unfinished, path)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    sync(path.parent)


def remove_unfinished(folder: Path) -> None:
    """Removes what killed processes left half written."""
    for left in folder.glob(f"{UNFINISHED}*"):
        if not lives(left.name.removeprefix(UNFINISHED).partition("-")[0]):
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def remove_folder(folder: Path) -> None:
    """Takes the name away first, so that what is left half removed is not taken for the whole."""
    doomed = folder.with_name(f"{UNFINISHED}{os.getpid()}-{folder.name}")
    os.rename(folder, doomed)
    shutil.rmtree(doomed)


def sync(path: Path) -> None:
    """Waits until the disk has a file that another library wrote, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path, *, mode: int = 0o666) -> Iterator[None]:
    """Inside the block no other process is in one with the same file, which is made if need be.

    A link in its place is an OSError: somebody may have put it there.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, mode)
    try:
        lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def lock(descriptor: int, *, wait: bool = True) -> bool:
    """Locks an open file until it is closed; whether that could be done without waiting."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def lives(pid: str) -> bool:
    """Whether a process of this machine has this number."""
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        pass
    return True


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
