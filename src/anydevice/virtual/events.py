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

    def __init__(self, hear: Callable[[Event], None], kinds: tuple[str, ...]) -> None:
        self._listener, self.kinds = hear, kinds
        self.error: BaseException | None = None

    def hear(self, event: Event) -> None:
        try:
            self._listener(event)
        except BaseException as error:
            self.error = self.error or error


@contextmanager
def listening(hear: Callable[[Event], None], kinds: tuple[str, ...] = KINDS) -> Iterator[None]:
    """Calls `hear` with each event of these kinds, in the thread of this process that caused it.

    An error that `hear` raises is raised at the end of the block.
    """
    one = _Listening(hear, kinds)
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
    kind = KINDS[report.event]
    hearing = [one for one in _all_listening if kind in one.kinds]
    if not hearing:
        return  # nearly all are of memory, which few listen to
    file, line = own_place(sys._getframe(1))
    event = Event(
        kind=kind,
        op=report.op.decode(),
        bytes=report.bytes,
        source=report.source,
        destination=report.destination,
        pinned=report.pinned,
        blocking=report.blocking,
        file=file,
        line=line,
    )
    for one in hearing:
        one.hear(event)


# Made once and for good: another thread may be on its way here when the last listener leaves.
_heard = _Listener(_hear)
