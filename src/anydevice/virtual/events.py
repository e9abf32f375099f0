"""What a program does that costs time on a GPU, and where: transfers, synchronisations, memory.

with listening(print):
    loss.item()
"""

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from anydevice.frames import line_text, own_place
from anydevice.virtual import core

KINDS = ("transfer", "synchronise", "allocate", "release")
HOST = -1


@dataclass(frozen=True)
class Event:
    """One report of the core. A device is its index, or HOST."""

    kind: str
    op: str
    bytes: int
    source: int
    destination: int
    pinned: bool
    blocking: bool
    file: str
    line: int

    @property
    def where(self) -> str:
        """The user's line: `train.py:17`."""
        return line_text(self.file, self.line)


class _Report(ctypes.Structure):
    """`anydevice::Report` in native/anydevice.h."""

    _fields_ = (
        ("event", ctypes.c_int),
        ("op", ctypes.c_char_p),
        ("bytes", ctypes.c_int64),
        ("source", ctypes.c_int),
        ("destination", ctypes.c_int),
        ("pinned", ctypes.c_bool),
        ("blocking", ctypes.c_bool),
    )


_Listener = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Report))
_all_listening: list["_Listening"] = []


class _Listening:
    """A listener, and the first error that it raised: ctypes would swallow it."""

    def __init__(self, hear: Callable[[Event], None]) -> None:
        self._listener = hear
        self.error: BaseException | None = None

    def hear(self, event: Event) -> None:
        try:
            self._listener(event)
        except BaseException as error:
            self.error = self.error or error


@contextmanager
def listening(hear: Callable[[Event], None]) -> Iterator[None]:
    """Calls `hear` with each event of this process, in the thread that caused it.

    An error that `hear` raises is raised at the end of the block.
    """
    one = _Listening(hear)
    _all_listening.append(one)
    core.library().anydevice_listen(_heard)
    try:
        yield
    finally:
        _all_listening.remove(one)
        if not _all_listening:
            core.library().anydevice_listen(None)
    if one.error:
        raise one.error


def _hear(pointer: "ctypes._Pointer[_Report]") -> None:
    report = pointer.contents
    file, line = own_place(sys._getframe(1))
    event = Event(
        kind=KINDS[report.event],
        op=report.op.decode(),
        bytes=report.bytes,
        source=report.source,
        destination=report.destination,
        pinned=report.pinned,
        blocking=report.blocking,
        file=file,
        line=line,
    )
    for one in tuple(_all_listening):
        one.hear(event)


# Made once and for good: another thread may be on its way here when the last listener leaves.
_heard = _Listener(_hear)
