"""What was open before the sandbox, and still leads out of it: descriptors and memory maps."""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from anydevice.plan.hollow.sandbox import syscalls

CREATING = os.O_CREAT | os.O_EXCL | os.O_TRUNC
CHUNK = 1 << 20
SHARED = ("/dev/", "/memfd:")  # memory, by which processes talk to each other


def reopen(keep: Collection[int]) -> None:
    """Files and folders that are open are opened again in the sandbox, under their numbers."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in keep:
            with suppress(OSError):
                _reopen(descriptor)


def _reopen(descriptor: int) -> None:
    mode = os.fstat(descriptor).st_mode
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if not stat.S_ISDIR(mode) and not (stat.S_ISREG(mode) and flags & os.O_ACCMODE):
        return
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    if path.startswith(SHARED):
        return
    try:
        other = os.open(path, flags & ~CREATING)
    except OSError:
        other = _copied(descriptor)  # nobody else finds it any more
    if stat.S_ISREG(mode):
        os.lseek(other, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
    os.dup2(other, descriptor, inheritable=os.get_inheritable(descriptor))
    os.close(other)


def _copied(descriptor: int) -> int:
    """The same bytes in memory; none, if they may only be written."""
    other = os.memfd_create("plan")
    with suppress(OSError):
        while piece := os.pread(descriptor, CHUNK, os.lseek(other, 0, os.SEEK_CUR)):
            os.write(other, piece)
    return other


def unshare_maps() -> None:
    """Files that are mapped to be written to, as by numpy.memmap: from now on, this process's."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, allowed, offset, _, node, *path = line.split(maxsplit=5)
        if allowed[1] == "w" and allowed[3] == "s" and node != "0":
            with suppress(OSError):
                _unshare(where, int(offset, 16), path[0])


def _unshare(where: str, offset: int, path: str) -> None:
    if path.startswith(SHARED):
        return
    begin, end = (int(address, 16) for address in where.split("-"))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        syscalls.map_privately(begin, end - begin, protection, descriptor, offset)
    finally:
        os.close(descriptor)
