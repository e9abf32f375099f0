"""The copies of files that a program writes to, and which path it sees where."""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from anydevice import system

# Note [Copies]
#
# A file that is opened to be written to is first copied into a folder of the plan's, under its own
# path, and the copy is opened. Who reads that path later gets the copy. Paths that were removed are
# remembered. So the program *sees* a path either in the folder of copies or where it really is.
#
# Links are followed here, one by one, since a link may be a copy and what it points to may not.

PASSED = ("/dev", "/proc", "/sys")
LINKS = 40  # as many as Linux follows

# Python's own, from before they were replaced.
_open, _lstat, _stat, _readlink, _listdir = io.open, os.lstat, os.stat, os.readlink, os.listdir
_mkdir, _remove, _getcwd, _symlink = os.mkdir, os.remove, os.getcwd, os.symlink
_chmod, _utime, _link = os.chmod, os.utime, os.link


def _is(path: str) -> bool:
    try:
        _lstat(path)
    except (OSError, ValueError):
        return False
    return True


def _above(path: str) -> Iterator[str]:
    """The path, and each folder that it is in."""
    while path != "/":
        yield path
        path = os.path.dirname(path)


@dataclass
class Copies:
    """What the program sees in place of the real files."""

    root: str
    removed: set[str] = field(default_factory=set)

    def path(self, path: Any, folder: int | None = None, *, follow: bool = True) -> str:
        """Absolute, with each link followed (the last one too, or not)."""
        text = os.fsdecode(path)
        if not os.path.isabs(text):
            start = _getcwd() if folder is None else system.folder_of(folder)
            text = os.path.join(self.real(start), text)
        left, done, links = text.split("/")[::-1], "/", 0
        while left:
            part = left.pop()
            if part in ("", "."):
                continue
            if part == "..":
                done = os.path.dirname(done)
                continue
            at = os.path.join(done, part)
            link = self.link(at) if (follow or left) and links < LINKS else None
            if link is None:
                done = at
            else:
                links += 1
                done = "/" if os.path.isabs(link) else done
                left += link.split("/")[::-1]
        return done

    def link(self, path: str) -> str | None:
        """What the link at this path says; None if it is none."""
        if path.startswith("/proc/"):
            return None
        try:
            return os.fsdecode(_readlink(self.seen(path)))
        except OSError:
            return None

    def real(self, path: str) -> str:
        """The path of which this is a copy, or itself."""
        return path.removeprefix(self.root) or "/" if self.is_copy(path) else path

    def is_copy(self, path: str) -> bool:
        """Whether it lies in the folder of copies."""
        return path == self.root or path.startswith(f"{self.root}/")

    def passed(self, path: str) -> bool:
        """Devices, and the plan's own folder."""
        return self.is_copy(path) or any(
            path == top or path.startswith(f"{top}/") for top in (*PASSED, tempfile.gettempdir())
        )

    def seen(self, path: str) -> str:
        """Where the program finds what it knows by this path."""
        if self.passed(path):
            return path
        copy = self.root + path
        return copy if self.hidden(path) or _is(copy) else path

    def hidden(self, path: str) -> bool:
        """Whether what is really there was removed."""
        return any(above in self.removed for above in _above(path))

    def exists(self, path: str) -> bool:
        """As the program sees it."""
        return _is(self.seen(path))

    def own(self, path: str, *, copied: bool = True) -> str:
        """A place to write to: a copy of what is there, if wanted, in copies of its folders."""
        if self.passed(path):
            return path
        copy = self.root + path
        if not _is(copy):
            if path != "/":
                self.folder(os.path.dirname(path))
            if copied and self.exists(path):
                self.copy(path, copy)
        return copy

    def folder(self, path: str) -> None:
        """A copy of a folder, without what is in it."""
        place = self.seen(path)
        if not stat.S_ISDIR(_stat(place).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        self.own(path)

    def copy(self, path: str, to: str) -> None:
        """A file, a link, or a folder without what is in it, unless another process has made it."""
        about = _lstat(path)
        with suppress(FileExistsError):
            if stat.S_ISLNK(about.st_mode):
                _symlink(_readlink(path), to)
            elif stat.S_ISDIR(about.st_mode):
                _mkdir(to)
                _chmod(to, stat.S_IMODE(about.st_mode) | stat.S_IRWXU)
            else:
                self._copy_whole(path, to, stat.S_IMODE(about.st_mode))
            _utime(to, ns=(about.st_atime_ns, about.st_mtime_ns), follow_symlinks=False)

    def _copy_whole(self, path: str, to: str, mode: int) -> None:
        """A file that nobody sees before all of it is there."""
        part = f"{self.root}/.part-{os.getpid()}-{threading.get_ident()}"
        with _open(path, "rb") as source, _open(part, "wb") as copy:
            shutil.copyfileobj(source, copy)
        _chmod(part, mode)
        try:
            _link(part, to)
        finally:
            _remove(part)

    def copy_all(self, path: str) -> str:
        """With all that is in it."""
        copy = self.own(path)
        if stat.S_ISDIR(_lstat(copy).st_mode):
            for name in self.names(path):
                self.copy_all(os.path.join(path, name))
        return copy

    def names(self, path: str) -> list[str]:
        """What is in a folder."""
        place, names = self.seen(path), {}
        names.update(dict.fromkeys(_listdir(place)))
        if place != path and not self.hidden(path) and _is(path):
            names.update(dict.fromkeys(_listdir(path)))
        return [name for name in names if self.exists(os.path.join(path, name))]
