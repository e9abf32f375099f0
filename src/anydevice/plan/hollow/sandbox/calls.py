"""Where the system allows no private mounts: Python's functions that write work on copies."""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
import sqlite3
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from anydevice import system
from anydevice.plan.hollow.sandbox.copies import Copies

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
AUDITED = (
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "os.chown"),
    *("os.link", "os.symlink", "os.utime", "os.setxattr", "os.removexattr", "sqlite3.connect"),
)
PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn")

# Python's own, from before they were replaced.
_open, _os_open, _lstat = io.open, os.open, os.lstat
_scandir, _getcwd = os.scandir, os.getcwd
_mkdir, _rmdir, _remove, _rename, _symlink = os.mkdir, os.rmdir, os.remove, os.rename, os.symlink


class _Found(os.PathLike[Any]):
    """As os.DirEntry."""

    def __init__(self, folder: Any, name: Any) -> None:
        self.name = os.fsencode(name) if isinstance(folder, bytes) else name
        self.path = os.path.join(folder, self.name)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        return os.lstat(self.path).st_ino

    def is_symlink(self) -> bool:
        return self._is(stat.S_ISLNK, False)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISREG, follow_symlinks)

    def _is(self, kind: Callable[[int], bool], follow: bool) -> bool:
        with suppress(OSError):
            return kind(os.stat(self.path, follow_symlinks=follow).st_mode)
        return False


class _Listing:
    """As what os.scandir returns."""

    def __init__(self, entries: list[_Found]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[_Found]:
        return self._entries

    def __next__(self) -> _Found:
        return next(self._entries)

    def __enter__(self) -> _Listing:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def enter(folder: str, *, programs: bool) -> None:
    """From now on this process writes to copies in the folder; other programs run, or do not."""
    folder = os.path.realpath(folder)  # as all paths are compared
    temporary = os.path.join(folder, "tmp")
    _mkdir(temporary)
    tempfile.tempdir = os.environ["TMPDIR"] = temporary
    copies = Copies(os.path.join(folder, "copies"))
    _mkdir(copies.root)
    sys.dont_write_bytecode = True
    vars(shutil)["_use_fd_functions"] = False  # rmtree by paths
    _replace_opening(copies)
    _replace_reading(copies)
    _replace_changing(copies)
    _replace_moving(copies)
    _replace_loading(copies)
    sys.addaudithook(_refusing(copies, programs))


def _replace_opening(copies: Copies) -> None:
    def place(path: Any, writing: bool, new: bool, folder: int | None = None) -> Any:
        if isinstance(path, int):
            return path
        at = copies.path(path, folder)
        return copies.own(at, copied=not new) if writing else copies.seen(at)

    def opened(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        opener = options.get("opener") or (args[5] if len(args) > 5 else None)
        if opener is None:
            file = place(file, not {*mode}.isdisjoint("wax+"), "w" in mode)
        return _open(file, mode, *args, **options)

    def os_opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        writing = bool(flags & WRITING)
        new = {os.O_TRUNC, os.O_CREAT} <= {flags & os.O_TRUNC, flags & os.O_CREAT}
        return _os_open(place(path, writing, new, dir_fd), flags, mode)

    connect = sqlite3.connect

    def connected(database: Any, *args: Any, **options: Any) -> Any:
        text = os.fsdecode(database)
        if text and text != ":memory:" and not text.startswith("file:"):
            database = place(text, True, False)
        return connect(database, *args, **options)

    builtins.open = io.open = opened
    os.open = os_opened
    sqlite3.connect = sqlite3.dbapi2.connect = connected


def _there(*names: str) -> list[str]:
    """What of it this system has: macOS keeps extended attributes in another way."""
    return [name for name in names if hasattr(os, name)]


def _replace_reading(copies: Copies) -> None:
    def on_seen(function: Callable[..., Any], *, link: bool = False) -> Any:
        def called(path: Any, *args: Any, dir_fd: int | None = None, **options: Any) -> Any:
            if isinstance(path, int):
                return function(path, *args, **options)
            follow = not link and options.get("follow_symlinks", True)
            at = copies.seen(copies.path(path, dir_fd, follow=follow))
            return function(at, *args, **options)

        return called

    for name in _there("stat", "access", "chdir", "statvfs", "getxattr", "listxattr"):
        setattr(os, name, on_seen(getattr(os, name)))
    for name in ("lstat", "readlink"):
        setattr(os, name, on_seen(getattr(os, name), link=True))
    os.getcwd = lambda: copies.real(_getcwd())
    os.getcwdb = lambda: os.fsencode(os.getcwd())

    def folder(path: Any) -> str:
        path = system.folder_of(path) if isinstance(path, int) else path
        return copies.path(copies.real(os.fsdecode(path)))

    def listed(path: Any = ".") -> Any:
        names = copies.names(folder(path))
        return [*map(os.fsencode, names)] if isinstance(path, bytes) else names

    def scanned(path: Any = ".") -> Any:
        at = folder(path)
        if copies.seen(at) == at and not copies.removed:
            return _scandir(path)
        shown = at if isinstance(path, int) else os.fspath(path)
        return _Listing([_Found(shown, name) for name in copies.names(at)])

    os.listdir, os.scandir = listed, scanned


def _replace_changing(copies: Copies) -> None:
    def on_own(function: Callable[..., Any], *, link: bool = False) -> Any:
        def called(path: Any, *args: Any, dir_fd: int | None = None, **options: Any) -> Any:
            if isinstance(path, int):
                return function(path, *args, **options)
            follow = not link and options.get("follow_symlinks", True)
            at = copies.path(path, dir_fd, follow=follow)
            if not copies.exists(at):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            return function(copies.own(at), *args, **options)

        return called

    for name in _there("truncate", "chmod", "utime", "chown", "setxattr", "removexattr"):
        setattr(os, name, on_own(getattr(os, name)))
    os.lchown = on_own(os.lchown, link=True)

    def made(function: Callable[..., Any]) -> Any:
        def called(path: Any, *args: Any, dir_fd: int | None = None, **options: Any) -> Any:
            at = copies.path(path, dir_fd, follow=False)
            if copies.exists(at):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            return function(copies.own(at, copied=False), *args, **options)

        return called

    for name in ("mkdir", "mkfifo", "mknod"):
        setattr(os, name, made(getattr(os, name)))

    def symlink(src: Any, dst: Any, *args: Any, dir_fd: int | None = None, **options: Any) -> None:
        made(lambda place: _symlink(src, place))(dst, dir_fd=dir_fd)

    os.symlink = symlink


def _replace_moving(copies: Copies) -> None:
    def gone(path: str, take: Callable[[str], None]) -> None:
        place = copies.seen(path)
        if copies.passed(path) or place != path:
            take(place)
        else:
            _lstat(place)
        if not copies.passed(path):
            copies.removed.add(path)

    def removed(path: Any, *, dir_fd: int | None = None) -> None:
        at = copies.path(path, dir_fd, follow=False)
        if os.path.isdir(at) and not os.path.islink(at):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        gone(at, _remove)

    def folder_removed(path: Any, *, dir_fd: int | None = None) -> None:
        at = copies.path(path, dir_fd, follow=False)
        if copies.names(at):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        gone(at, _rmdir)

    def renamed(
        src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        from_ = copies.path(src, src_dir_fd, follow=False)
        to = copies.path(dst, dst_dir_fd, follow=False)
        if not copies.exists(from_):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), src, None, dst)
        if from_ == to:
            return
        source = copies.copy_all(from_)
        if copies.exists(to):
            (folder_removed if stat.S_ISDIR(_lstat(source).st_mode) else removed)(to)
        _rename(source, copies.own(to, copied=False))
        copies.removed |= {path for path in (from_, to) if not copies.passed(path)}

    def linked(src: Any, dst: Any, **options: Any) -> None:
        from_ = copies.path(src, options.get("src_dir_fd"), follow=False)
        to = copies.path(dst, options.get("dst_dir_fd"), follow=False)
        if copies.exists(to):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), src, None, dst)
        link(copies.own(from_), copies.own(to, copied=False), follow_symlinks=False)

    link = os.link
    os.remove = os.unlink = removed
    os.rmdir = folder_removed
    os.rename = os.replace = renamed
    os.link = linked


def _replace_loading(copies: Copies) -> None:
    """Native code reads the copies too."""
    import safetensors
    import safetensors.torch
    import torch

    def loaded(function: Callable[..., Any]) -> Any:
        def called(path: Any, *args: Any, **options: Any) -> Any:
            if isinstance(path, str | os.PathLike):
                path = copies.seen(copies.path(path))
            return function(path, *args, **options)

        return called

    for owner, name in (
        (torch, "load"),
        (torch.serialization, "load"),
        (safetensors, "safe_open"),
        (safetensors.torch, "safe_open"),
        (safetensors.torch, "load_file"),
    ):
        setattr(owner, name, loaded(getattr(owner, name)))


def _is_there(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether a program may be started: where it is missing, Python says that."""
    if event not in ("subprocess.Popen", "os.posix_spawn"):
        return True
    folder, environment = arguments[2:] if event == "subprocess.Popen" else (None, None)
    program = os.fsdecode(arguments[0])
    if os.sep in program:
        return os.path.lexists(os.path.join(os.fsdecode(folder or _getcwd()), program))
    places = [*os.get_exec_path(), *os.get_exec_path(environment)]
    return any(os.path.lexists(os.path.join(place, program)) for place in places)


def _refusing(copies: Copies, programs: bool) -> Callable[[str, tuple[Any, ...]], None]:
    """What Python writes by another way than the functions here ends with an error."""

    def refuse(what: object) -> None:
        raise PermissionError(
            errno.EACCES, "under plan nothing is written, and this way of writing is refused", what
        )

    def check(path: Any) -> None:
        if isinstance(path, int) or path in (None, "", ":memory:"):
            return
        if not copies.passed(os.path.abspath(os.path.join(_getcwd(), os.fsdecode(path)))):
            refuse(path)

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & WRITING:
                check(path)
        elif event in AUDITED:
            check(arguments[1] if event in ("os.rename", "os.link", "os.symlink") else arguments[0])
            if event == "os.rename":
                check(arguments[0])
        elif event in PROGRAMS and not programs and _is_there(event, arguments):
            refuse(arguments[0])

    return heard
