"""The user's cache folder: where it is, and that nobody else can write to it.

Note [Who may write to the cache]
- Libraries in the cache are loaded, so a person who can write to it can run code as this user. The
  names in it can be guessed: in a shared folder, somebody else could put a library there first.
- So the cache, each folder in it that is used, and each file in that must belong to somebody whose
  code runs anyway: this user, root, or the owner of this package. And nobody else may write to it.
  A cache that root filled for everybody passes.
- Folders and files are made so that only their owner can write, even where the umask would let a
  group do so.
- The folders above may be shared, as /tmp is. But one that others can write to needs the sticky
  bit: without it they can rename what is in it, and put their cache in the place of this one after
  the check. The groups of root and of this user alone are not others.
- Against damage, not against people, a library has a checksum (build.py).
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from anydevice import system
from anydevice.errors import UsageError

MODE = 0o644  # of files that are kept
NOBODY = 65534
OTHERS = stat.S_IWGRP | stat.S_IWOTH
FIX = "delete it, or set XDG_CACHE_HOME to a folder that only you can write to."


def cache_dir() -> Path:
    """Where what is built or measured on this machine is kept."""
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        return Path(chosen) / "anydevice"
    try:
        return Path.home() / ".cache" / "anydevice"
    except RuntimeError as error:
        raise UsageError(
            "expected a home folder to keep the cache in, got no HOME and a user without one: "
            "set XDG_CACHE_HOME to a folder that only you can write to."
        ) from error


def folder(name: str) -> Path:
    """A folder of the cache, made if it is not there, refused if others can write to it."""
    cache = cache_dir()
    cache.parent.mkdir(parents=True, exist_ok=True)
    for each in (cache, cache / name):
        each.mkdir(mode=0o755, exist_ok=True)
        refuse_foreign(each)
    for passed in _way_to(cache / name):
        _refuse_swaps(passed)
    for file in (cache / name).iterdir():
        with suppress(FileNotFoundError):  # another process gives it its last name just now
            refuse_foreign(file)
    return cache / name


def keep_from_others(file: Path) -> None:
    """Takes others' right to write from a file that another program made."""
    file.chmod(stat.S_IMODE(file.stat().st_mode) & ~OTHERS)


def refuse_foreign(path: Path) -> None:
    """An error if the file or folder, or a link to it, is in others' hands."""
    for state in _states(path):
        if state.st_uid not in _trusted():
            raise UsageError(
                f"expected {path} to belong to you or to root, since code in it is run; "
                f"it belongs to {_name(state.st_uid)}: {FIX}"
            )
        if state.st_mode & OTHERS and not stat.S_ISLNK(state.st_mode):
            raise UsageError(
                f"expected that only its owner can write to {path}, since code in it is run; "
                f"its permissions are {stat.filemode(state.st_mode)}: {FIX}"
            )


def _way_to(path: Path) -> Iterator[Path]:
    """The folders and links by which a path is reached."""
    for passed in (path.absolute(), *path.absolute().parents):
        yield passed
        if passed.is_symlink():
            yield from _way_to(passed.parent / os.readlink(passed))


def _refuse_swaps(folder: Path) -> None:
    """An error if others can put something else in the place of what is in a folder."""
    for state in _states(folder):
        foreign = state.st_uid not in _trusted() | _outside()
        if foreign or (_others_write(state) and not state.st_mode & stat.S_ISVTX):
            raise UsageError(
                "expected a folder for the cache that nobody else can replace, got one in "
                f"{folder}, which belongs to {_name(state.st_uid)} and has the permissions "
                f"{stat.filemode(state.st_mode)}: set XDG_CACHE_HOME to a folder of your own."
            )


def _outside() -> set[int]:
    """In a namespace of users, as of a container, who owns what is outside of it: "nobody"."""
    return {NOBODY} if system.maps_users() else set()


def _others_write(state: os.stat_result) -> bool:
    if stat.S_ISLNK(state.st_mode):
        return False
    others = stat.S_IWOTH if state.st_gid in (0, os.geteuid()) else OTHERS
    return bool(state.st_mode & others)


def _states(path: Path) -> Iterator[os.stat_result]:
    state = path.lstat()
    yield state
    if stat.S_ISLNK(state.st_mode):
        yield path.stat()


def _trusted() -> set[int]:
    return {0, os.geteuid(), os.stat(__file__).st_uid}


def _name(user: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(user).pw_name
    except (ImportError, KeyError):
        return f"the user {user}"
