"""Which line of the user's own program something comes from."""

from __future__ import annotations

import os
import sysconfig
import traceback
from functools import cache
from types import FrameType

from anydevice.virtual import events


def is_own(file: str) -> bool:
    """Whether a file is the user's own: of no package that is installed, nor Python's."""
    return not file.startswith(_libraries()) and not file.startswith("<frozen")


def own_line(frame: FrameType | None) -> str:
    """The innermost line of the user's own, `train.py:12`, at or around a frame."""
    while frame is not None:
        if is_own(frame.f_code.co_filename):
            return named(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ""


def line_of(error: BaseException | None) -> str:
    """The innermost line of the user's own that an error passed through."""
    walked = traceback.walk_tb(error.__traceback__ if error else None)
    files = [(frame.f_code.co_filename, line) for frame, line in walked]
    own = [named(file, line) for file, line in files if is_own(file)]
    return own[-1] if own else ""


def named(file: str, line: int) -> str:
    """`train.py:12`."""
    return f"{os.path.basename(file)}:{line}"


@cache
def _libraries() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return (*events._libraries(), *(folder + os.sep for folder in folders))
