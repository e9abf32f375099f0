"""Landlock: the process, and what it starts, may write in some folders alone; native code too."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

from anydevice.plan.hollow.sandbox import syscalls

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION, PATH_BENEATH = 1, 1
# linux/landlock.h: to write a file, remove and make folders, files, devices, sockets, pipes, links.
CHANGES = 1 << 1 | sum(1 << bit for bit in range(4, 13))
REFER, TRUNCATE = 1 << 13, 1 << 14  # from versions 2 and 3


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"  # what _pack_ means, as Python 3.14 wants it stated
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def restrict(folders: Iterable[str]) -> None:
    """From now on files change in these folders alone; OSError where there is no Landlock."""
    version = syscalls.landlock(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(VERSION))
    if version < 3:
        raise OSError(f"expected Landlock of version 3 or later, got {version}.")
    changes = CHANGES | REFER | TRUNCATE
    handled = ctypes.c_uint64(changes)
    size = ctypes.c_size_t(ctypes.sizeof(handled))
    rules = syscalls.landlock(CREATE_RULESET, ctypes.byref(handled), size, ctypes.c_uint32(0))
    try:
        for folder in folders:
            _allow(rules, folder, changes)
        syscalls.without_new_privileges()
        syscalls.landlock(RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint32(0))
    finally:
        os.close(rules)


def _allow(rules: int, folder: str, changes: int) -> None:
    descriptor = os.open(folder, os.O_PATH)
    try:
        beneath = _Beneath(changes, descriptor)
        rule = (ctypes.c_int(rules), ctypes.c_int(PATH_BENEATH), ctypes.byref(beneath))
        syscalls.landlock(ADD_RULE, *rule, ctypes.c_uint32(0))
    finally:
        os.close(descriptor)
