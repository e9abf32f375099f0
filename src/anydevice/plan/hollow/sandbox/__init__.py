"""A plan changes no file: what the program writes goes nowhere, and it reads what it wrote."""

from __future__ import annotations

import os
from collections.abc import Collection

from anydevice import system
from anydevice.plan.hollow.sandbox import calls, inherited, landlock, mounts

CHOICE = "ANYDEVICE_PLAN_SANDBOX"  # for the tests: "mounts", "landlock" or "calls"
_starts_programs = True


def enter(folder: str, keep: Collection[int] = ()) -> str:
    """In a forked child, with a folder for copies and descriptors to leave as they are.

    What is weaker than it should be, in a sentence; nothing if all files are protected.
    """
    kind = os.environ.get(CHOICE, "mounts")
    try:
        if not system.LINUX:
            raise mounts.UnavailableError("it is not Linux")
        if kind != "mounts":
            raise mounts.UnavailableError(f"{CHOICE} is {kind}")
        mounts.enter()
        weaker = ""
    except mounts.UnavailableError as reason:
        weaker = _copies(folder, reason, kind)
    if system.LINUX:
        inherited.reopen(keep)
        inherited.unshare_maps()
    return weaker


def why_no_programs() -> str:
    """Why this process starts no other program, such as a compiler; nothing if it does."""
    return "" if _starts_programs else "this system cannot keep a compiler from writing files"


def _copies(folder: str, reason: Exception, kind: str) -> str:
    global _starts_programs
    try:
        if kind == "calls" or not system.LINUX:
            raise OSError("calls alone")
        landlock.restrict((folder, "/dev", "/proc"))
        protected = True
    except OSError:
        protected = False
    calls.enter(folder, programs=protected)
    _starts_programs = protected
    others = (
        "native code and other programs cannot write"
        if protected
        else "native code could still write, and other programs are not run"
    )
    return (
        f"plan: this system gives it no separate file system ({reason}): the program writes to "
        f"copies of its files, {others}."
    )
