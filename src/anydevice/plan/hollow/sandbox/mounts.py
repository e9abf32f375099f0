"""A view of all files for one process and its children: what they write stays in memory."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copy2, copytree, rmtree
from tempfile import gettempdir
from typing import Any

from anydevice.plan.hollow.sandbox import syscalls

# Note [The sandbox of a plan]
#
# In a mount namespace that nobody else sees, each file system that can be written to is put under
# an overlay: files are read from below, and what is written, changed or removed is kept above, in a
# tmpfs that goes with the last process in the namespace. This holds for native code and for other
# programs too.
#
# Root makes a namespace for its mounts. Any other user makes one for users too, and may mount in
# it. There Linux does not let a process look below the mounts that it was given, so that a folder
# with mounts in it cannot be put under an overlay as it is: it is built anew in the tmpfs, and each
# of its folders gets an overlay. `/` is always such a folder.
#
# The new tree is made on a tmpfs that is `/` meanwhile, with the old tree in /old and the new one
# in /new. At last the new tree becomes `/`, and the old one is detached.

KERNELS = (
    *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts"),
    *("devtmpfs", "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "ramfs"),
    *("rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs"),
)
ALONE = ("/dev", "/proc", "/sys")  # devices do not work through an overlay
COPIED = 1 << 20  # bytes: larger files of a folder that is built anew can only be read


class UnavailableError(Exception):
    """The system does not allow it."""


def enter() -> None:
    """From now on this process, alone in its view of the files, changes none of them."""
    try:
        if os.geteuid() != 0:
            _check_group(os.getcwd())
        may_mount_all = _unshared()
        syscalls.mount("none", "/", None, syscalls.RECURSIVE | syscalls.PRIVATE)
        _Tree(may_mount_all).build()
        if not may_mount_all:
            _rename_folders()
    except OSError as error:
        raise UnavailableError(str(error)) from None
    finally:
        if os.geteuid() != 0:
            with suppress(OSError):
                syscalls.without_capabilities()


def _check_group(folder: str) -> None:
    """Linux makes no copies, in a user namespace, of files of another group than the user's own."""
    if os.access(folder, os.W_OK) and os.stat(folder).st_gid != os.getegid():
        raise UnavailableError("the working directory belongs to another group than the user's own")


def _unshared() -> bool:
    """Whether this user may mount outside of a user namespace too."""
    if os.geteuid() == 0:
        with suppress(OSError):
            syscalls.unshare(syscalls.NEW_NAMESPACE)
            return True
    user, group = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.NEW_NAMESPACE | syscalls.NEW_USERS)
    with suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return False


def _rename_folders() -> None:
    """An overlay in a user namespace does not rename a folder from below: it is copied instead."""
    rename = os.rename

    def renamed(src: Any, dst: Any, **folders: Any) -> None:
        try:
            rename(src, dst, **folders)
        except OSError as error:
            if error.errno != errno.EXDEV or folders or not os.path.isdir(src):
                raise
            copytree(src, dst, symlinks=True, dirs_exist_ok=True)
            rmtree(src)

    os.rename = os.replace = renamed


@dataclass
class _Mount:
    path: str
    kind: str
    writable: bool

    @property
    def is_kernels(self) -> bool:
        """It has no files, or devices."""
        return (
            self.kind in KERNELS or self.path in ALONE or self.path.startswith(("/proc/", "/sys/"))
        )


def _mounts() -> list[_Mount]:
    """What is mounted where, parents first; of several at one place the last."""
    found = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place, _, source = line.partition(" - ")
        path, options = place.split()[4:6]
        path = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), path)
        kind, _, its_own = source.split(" ", 2)
        read_only = "ro" in options.split(",") or "ro" in its_own.split(" ")[-1].split(",")
        found[path] = _Mount(path, kind, not read_only)
    return sorted(found.values(), key=lambda mount: mount.path.rstrip("/").split("/"))


@dataclass
class _Tree:
    may_mount_all: bool
    mounts: list[_Mount] = field(default_factory=_mounts)
    used: set[str] = field(default_factory=lambda: _used())
    overlays: int = 0

    def build(self) -> None:
        """All mounts again, under the new root, which then is this process's."""
        folder, stage = os.getcwd(), os.path.realpath(gettempdir())
        syscalls.mount("plan", stage, "tmpfs", 0, f"mode=755,size={_room()}")
        os.mkdir(f"{stage}/old")
        os.mkdir(f"{stage}/new")
        try:
            syscalls.pivot_root(stage, f"{stage}/old")
            os.chdir("/")
            try:
                for mount in self.mounts:
                    self.place(mount)
            except BaseException:
                syscalls.pivot_root("/old", f"/old{stage}")
                raise
            os.chdir("/new")
            syscalls.pivot_root(".", ".")
            syscalls.unmount(".")
        except BaseException:
            os.chdir("/")  # the working directory may lie below the stage
            syscalls.unmount(stage)
            os.chdir(folder)
            raise
        os.chdir(folder)

    def place(self, mount: _Mount) -> None:
        """The mount, so that it can be read as before and writing changes nothing."""
        path = mount.path
        if mount.is_kernels:
            if not path.startswith(tuple(f"{parent}/" for parent in ALONE)):
                self.bind(path)
        elif path == "/" or os.path.exists(_new(path)):  # or something was mounted over it
            try:
                self.protect(mount)
            except OSError:
                if path == "/" or any(f"{used}/".startswith(f"{path}/") for used in self.used):
                    raise
                self.bind(path, read_only=True)

    def protect(self, mount: _Mount) -> None:
        path = mount.path
        if not mount.writable or not os.path.isdir(_old(path)):
            self.bind(path, read_only=mount.writable)
        elif self.may_mount_all or not self.any_below(path):
            self.overlay(path)
        else:
            syscalls.mount("plan", _new(path), "tmpfs", 0, "mode=755")
            self.rebuild(path)

    def any_below(self, path: str) -> bool:
        """Whether something is mounted below."""
        return any(mount.path.startswith(f"{path.rstrip('/')}/") for mount in self.mounts)

    def bind(self, path: str, *, read_only: bool = False) -> None:
        """As it is, with all that is mounted below."""
        syscalls.mount(_old(path), _new(path), None, syscalls.BIND | syscalls.RECURSIVE)
        if read_only:
            syscalls.make_read_only(_new(path))

    def overlay(self, path: str) -> None:
        self.overlays += 1
        upper, work = f"/upper{self.overlays}", f"/work{self.overlays}"
        os.mkdir(upper)
        os.mkdir(work)
        for folder in self.above_used(path):
            above = upper + folder[len(path.rstrip("/")) :]
            os.makedirs(above, exist_ok=True)
            _dress(above, os.stat(_old(folder)))
        lower = re.sub(r"([\\:,])", r"\\\1", _old(path))
        more = "redirect_dir=on" if self.may_mount_all else "userxattr"
        options = f"lowerdir={lower},upperdir={upper},workdir={work},{more}"
        syscalls.mount("plan", _new(path), "overlay", 0, options)

    def above_used(self, path: str) -> list[str]:
        """The folder, and those in it on the way to one that is used.

        An overlay in a user namespace cannot copy a folder of another user's to write in it.
        """
        below = [used for used in self.used if f"{used}/".startswith(f"{path.rstrip('/')}/")]
        ways = {str(way) for used in below for way in (Path(used), *Path(used).parents)}
        return sorted(way for way in ways | {path} if len(way) >= len(path))

    def rebuild(self, path: str) -> None:
        """A folder with mounts below: its folders as overlays, its files as copies."""
        for entry in os.scandir(_old(path)):
            with suppress(PermissionError):
                self.again(entry, f"{path.rstrip('/')}/{entry.name}")
        _dress(_new(path), os.stat(_old(path)))

    def again(self, entry: os.DirEntry[str], path: str) -> None:
        mounted = any(mount.path == path for mount in self.mounts)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), _new(path))
        elif entry.is_dir():
            os.mkdir(_new(path))
            if not mounted:
                self.rebuild(path) if self.any_below(path) else self.overlay(path)
        elif entry.is_file() and not mounted and entry.stat().st_size <= COPIED:
            copy2(entry.path, _new(path))
        else:
            Path(_new(path)).touch()
            if not mounted:
                self.bind(path, read_only=entry.is_file())


def _old(path: str) -> str:
    return f"/old{path}".rstrip("/")


def _new(path: str) -> str:
    return f"/new{path}".rstrip("/")


def _dress(folder: str, like: os.stat_result) -> None:
    """The folder's owner, mode and times are those of another."""
    with suppress(OSError):
        os.chown(folder, like.st_uid, like.st_gid)
    os.chmod(folder, stat.S_IMODE(like.st_mode))
    os.utime(folder, ns=(like.st_atime_ns, like.st_mtime_ns))


def _used() -> set[str]:
    """Folders that a program may well write to: where it runs, and those named to it."""
    named = (os.getcwd(), gettempdir(), "/var/tmp", os.path.expanduser("~"))
    words = (*os.environ.values(), *(word.partition("=")[2] or word for word in sys.argv))
    linked = (entry.path for entry in os.scandir(os.getcwd()) if entry.is_symlink())
    paths = {os.path.realpath(path) for path in (*named, *words, *linked) if _is_a_path(path)}
    return {path if os.path.isdir(path) else os.path.dirname(path) for path in paths}


def _is_a_path(word: str) -> bool:
    return os.path.isabs(word) and os.path.exists(word)


def _room() -> int:
    """Half of the memory that is free: what the program writes lies there."""
    found = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found[1]) * 1024 // 2 if found else 1 << 30
