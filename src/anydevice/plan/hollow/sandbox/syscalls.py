"""The system calls of a sandbox that Python has no function for."""

from __future__ import annotations

import ctypes
import os

NEW_NAMESPACE, NEW_USERS = 0x00020000, 0x10000000
READ_ONLY, BIND, RECURSIVE, PRIVATE = 1, 4096, 16384, 1 << 18
MOUNT_SETATTR, HERE, WITH_ALL_BELOW = 442, -100, 0x8000
DETACH = 2
NO_NEW_PRIVILEGES = 38
PRIVATELY, FIXED = 0x02, 0x10

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
]
_libc.syscall.restype = ctypes.c_long


def _checked(result: int, what: str) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """The process leaves what it shared with others; where it may not, OSError."""
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(
    source: str, target: str, kind: str | None = None, flags: int = 0, options: str = ""
) -> None:
    """As mount(2)."""
    given = (os.fsencode(source), os.fsencode(target), kind and kind.encode())
    result = _libc.mount(*given, ctypes.c_ulong(flags), os.fsencode(options))
    _checked(result, f"mount {kind or ''} on {target}")


def unmount(target: str) -> None:
    """From the tree at once, and for good when nobody uses it."""
    _checked(_libc.umount2(os.fsencode(target), DETACH), f"umount {target}")


def make_read_only(target: str) -> None:
    """With all that is mounted below; no other property of the mounts changes."""
    read_only = (ctypes.c_uint64 * 4)(READ_ONLY)
    call = (ctypes.c_long(MOUNT_SETATTR), HERE, os.fsencode(target), WITH_ALL_BELOW)
    result = _libc.syscall(*call, read_only, ctypes.c_size_t(ctypes.sizeof(read_only)))
    _checked(result, f"mount_setattr {target}")


def pivot_root(new: str, old: str) -> None:
    """Another file system is `/` from now on."""
    _checked(_libc.pivot_root(os.fsencode(new), os.fsencode(old)), "pivot_root")


def without_capabilities() -> None:
    """The process may no more than its user, in a user namespace too."""
    version_3 = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _checked(_libc.capset(version_3, (ctypes.c_uint32 * 6)()), "capset")


def without_new_privileges() -> None:
    """Programs that it starts get no other user's rights either, which Landlock asks for."""
    _checked(_libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl")


def landlock(number: int, *arguments: object) -> int:
    """One of its three calls."""
    return _checked(_libc.syscall(ctypes.c_long(number), *arguments), "landlock")


def map_privately(begin: int, size: int, protection: int, descriptor: int, offset: int) -> None:
    """The file's bytes at the same addresses, for this process alone from now on."""
    result = _libc.mmap(begin, size, protection, PRIVATELY | FIXED, descriptor, offset)
    if result != begin:
        raise OSError(ctypes.get_errno(), "mmap")
