"""What torch.cuda.memory._record_memory_history() records: allocations and frees, and where."""

from __future__ import annotations

import atexit
import ctypes
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from anydevice.virtual import core

ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
)
Frames = list[dict[str, Any]]
Observer = Callable[[int, int, int, int], None]


class Trace(ctypes.Structure):
    """`anydevice::memory::Trace` in native/memory/caching_allocator.h."""

    _fields_ = (
        ("action", ctypes.c_int),
        ("address", ctypes.c_uint64),
        ("size", ctypes.c_size_t),
        ("stream", ctypes.c_int64),
        ("pool", ctypes.c_int64 * 2),
    )


@dataclass
class History:
    """What is recorded, and the record."""

    enabled: str | None = None  # "state": of what is allocated now; "all": of all that happened
    context: str | None = None  # the frames of which actions: "state", "alloc", "all"
    skipped: frozenset[str] = frozenset()
    entries: dict[int, deque[dict[str, Any]]] = field(default_factory=dict)
    frames: dict[tuple[int, int], Frames] = field(default_factory=dict)  # by device and address
    most: int = sys.maxsize
    metadata: str = ""
    observers: list[Observer] = field(default_factory=list)


_history = History()
_Teller = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.POINTER(Trace))


def names() -> dict[str, Any]:
    """What torch._C calls them."""
    core.library().anydevice_memory_tell_history(None)
    vars(_history).update(vars(History()))
    return {
        "_cuda_record_memory_history": record,
        "_cuda_record_memory_history_legacy": _record_legacy,
        "_cuda_isHistoryEnabled": lambda: _history.enabled is not None,
        "_cuda_attach_out_of_memory_observer": _observe,
        "_cuda_setMemoryMetadata": lambda text: setattr(_history, "metadata", text),
        "_cuda_getMemoryMetadata": lambda: _history.metadata,
        "_cuda_memoryMetadataSupported": lambda: True,
        "_cuda_annotateMemory": lambda address, text: None,
        "_cuda_allocationTraceback": _traceback,
    }


def record(
    enabled: str | None,
    context: str | None = "all",
    stacks: str = "all",
    most: int = sys.maxsize,
    clear: bool = False,
    compile_context: bool = False,
    annotations: bool = False,
    skip: Sequence[str] = (),
    pinned: bool = False,
    cuda: bool = True,
) -> None:
    """Begins or, with None, ends. Of pinned memory there is no history, asked for or not."""
    for value, known in ((enabled, ("state", "all")), (context, ("state", "alloc", "all"))):
        if value is not None and value not in known:
            raise RuntimeError(f"expected one of {known} or None, got {value!r}")
    if unknown := set(skip) - set(ACTIONS):
        raise RuntimeError(f"Unknown action to skip: {', '.join(sorted(unknown))}")
    if clear or enabled is None:
        _history.entries.clear()
        _history.frames.clear()
    _history.enabled, _history.context, _history.most = enabled if cuda else None, context, most
    _history.skipped = frozenset(skip)
    listen()


def traces() -> list[list[dict[str, Any]]]:
    """The record of each device."""
    devices = range(core.library().anydevice_device_count())
    return [list(_history.entries.get(device, ())) for device in devices]


def add_frames(segments: list[dict[str, Any]]) -> None:
    """Adds to each block of a snapshot where it was allocated."""
    if not _history.frames:
        return
    for segment in segments:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                key = (segment["device"], block["address"])
                block["frames"] = _history.frames.get(key, [])


def _record_legacy(
    enabled: bool,
    record_context: bool = True,
    most: int = 1,
    alloc_context: bool = False,
    cpp: bool = False,
    clear: bool = False,
    *rest: Any,
) -> None:
    context = None if not record_context else "alloc" if alloc_context else "state"
    record("all" if enabled else None, context, "python", most, clear)


def _observe(observer: Observer) -> None:
    _history.observers.append(observer)
    listen()


def listen() -> None:
    """Listens to the allocator if the program has asked for a history, else no longer."""
    wanted = _history.enabled is not None or bool(_history.observers)
    core.library().anydevice_memory_tell_history(_told if wanted else None)
    if wanted:
        _stop_at_exit()


@cache
def _stop_at_exit() -> None:
    atexit.register(lambda: core.library().anydevice_memory_tell_history(None))


def _tell(device: int, pointer: ctypes._Pointer[Trace]) -> None:
    trace = pointer.contents
    action = ACTIONS[trace.action]
    if action == "oom":
        free, total = core.pair(core.library().anydevice_memory_info, device)
        for observer in tuple(_history.observers):
            observer(device, trace.size, total, free)
    if _history.enabled is None:
        return
    frames = _frames() if _wants_frames(action) else []
    if action == "alloc":
        wanted = _history.context is not None
        _history.frames[device, trace.address] = frames or (_frames() if wanted else [])
    elif action == "free_completed":
        _history.frames.pop((device, trace.address), None)
    if _history.enabled == "all" and action not in _history.skipped:
        entries = _history.entries.get(device)
        if entries is None or entries.maxlen != _history.most:
            most = None if _history.most >= sys.maxsize else _history.most
            entries = _history.entries[device] = deque(entries or (), most)
        entries.append(
            {
                "action": action,
                ("device_free" if action == "oom" else "addr"): trace.address,
                "size": trace.size,
                "stream": trace.stream,
                "time_us": time.time_ns() // 1000,
                "compile_context": "N/A",
                "user_metadata": _history.metadata,
                "pool_id": tuple(trace.pool),
                "frames": frames,
            }
        )


# Made once and for good: another thread may be on its way here when recording ends.
_told = _Teller(_tell)


def _wants_frames(action: str) -> bool:
    by_context = {
        "state": (),
        "alloc": ("alloc", "segment_alloc", "segment_map", "oom"),
        "all": ACTIONS,
    }
    return _history.context is not None and action in by_context[_history.context]


def _frames() -> Frames:
    """Of Python, the innermost first; those of this module left out."""
    frame = sys._getframe(1).f_back  # None in a thread that runs no Python code
    found = _script_frames()
    while frame is not None:
        code = frame.f_code
        found.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back
    return found


def _script_frames() -> Frames:
    lines = core.library().anydevice_script_frames().decode().splitlines()
    fields = [line.split("\t", 2) for line in lines]
    return [{"filename": file, "line": int(line), "name": name} for name, line, file in fields]


def _traceback(address: int) -> Frames | None:
    for (_, start), frames in _history.frames.items():
        if start == address:
            return frames
    return None
