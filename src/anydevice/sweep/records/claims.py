"""Which process has a run: a lock on a file in its folder, which ends with the process."""

import os
import weakref
from pathlib import Path

from anydevice.files import lock
from anydevice.sweep.records.records import LOCK, disk_errors, folder_of


class Claim:
    """A run that this process alone may write to, until `release()` or its end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        _held.add(self)

    def release(self) -> None:
        """Lets other processes have it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_held: "weakref.WeakSet[Claim]" = weakref.WeakSet()


def claim(folder: Path, key: str) -> Claim | None:
    """The run for this process, or None while another one has it."""
    path = folder_of(folder, key) / LOCK
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    if lock(descriptor, wait=False):
        return Claim(descriptor)
    os.close(descriptor)
    return None


def is_claimed(folder: Path, key: str) -> bool:
    """Whether a living process has the run."""
    try:
        descriptor = os.open(folder_of(folder, key) / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not lock(descriptor, wait=False)
    finally:
        os.close(descriptor)


def _forked() -> None:
    """A child, such as a DataLoader's worker that outlives the run, does not keep it claimed."""
    for held in list(_held):
        held.release()


os.register_at_fork(after_in_child=_forked)
