"""Which frame and which line of a program are the user's own."""

import os
import re
import sysconfig
import traceback
from functools import cache
from types import FrameType

INSTALLED = ("site-packages", "dist-packages")
GENERATED = ("<frozen ", "<eval_with_key>")  # by Python's import system, by torch.fx
OF_INDUCTOR = re.compile(
    r"/([a-z2-7]{2})/c\1[a-z2-7]{49}\.py$"
)  # named by the hash of what it holds


def own_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's own code, at or around this one.

    If all the code around is installed (a package run with `-m`), the innermost frame outside of
    torch and anydevice stands for it.
    """
    installed = None
    while frame is not None:
        file = frame.f_code.co_filename
        if is_own(file):
            return frame
        if installed is None and not _is_torch_or_here(file):
            installed = frame
        frame = frame.f_back
    return installed


def call_chain(frame: FrameType | None, stop: str = "") -> tuple[list[FrameType], FrameType | None]:
    """The user's own frames around this one, the innermost first; and the library's in between.

    Args:
        frame: Where to begin.
        stop: The file that called the program: what is around it is not the program's.

    Returns:
        The own frames, and the innermost frame of an installed package other than torch, if it is
        inside of the user's own.
    """
    own: list[FrameType] = []
    library = None
    while frame is not None and frame.f_code.co_filename != stop:
        file = frame.f_code.co_filename
        if is_own(file):
            own.append(frame)
        elif not own and library is None and any(name in file for name in INSTALLED):
            library = None if _is_torch_or_here(file) else frame
        frame = frame.f_back
    return own, library


def own_place(frame: FrameType | None) -> tuple[str, int]:
    """File and line of `own_frame`, or ("", 0) if there is none."""
    found = own_frame(frame)
    return (found.f_code.co_filename, found.f_lineno) if found else ("", 0)


def own_line(frame: FrameType | None) -> str:
    """The same as text, `train.py:12`; empty if there is none."""
    file, line = own_place(frame)
    return line_text(file, line) if file else ""


def line_of(error: BaseException | None) -> str:
    """The innermost line of the user's own code that an error passed through."""
    walked = traceback.walk_tb(error.__traceback__ if error else None)
    files = [(frame.f_code.co_filename, line) for frame, line in walked]
    own = [line_text(file, line) for file, line in files if is_own(file)]
    return own[-1] if own else ""


def line_text(file: str, line: int) -> str:
    """`train.py:12`."""
    return f"{os.path.basename(file)}:{line}"


@cache
def is_own(file: str) -> bool:
    """Whether a file is the user's own: not Python's, and of no package that is installed."""
    installed = file.startswith(_standard_library()) or any(name in file for name in INSTALLED)
    return not (installed or _is_torch_or_here(file))


@cache
def _is_torch_or_here(file: str) -> bool:
    written = file.startswith(GENERATED) or OF_INDUCTOR.search(file) is not None
    return written or file.startswith(_torch_and_here())


@cache
def _torch_and_here() -> tuple[str, ...]:
    import torch

    packages = (os.path.dirname(torch.__file__), os.path.dirname(__file__))
    return tuple(folder + os.sep for folder in packages)


@cache
def _standard_library() -> tuple[str, ...]:
    return tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
