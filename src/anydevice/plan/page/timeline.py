"""A GPU's memory over the steps: for the page, and for pytorch.org/memory_viz."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anydevice.files import write_named
from anydevice.plan.hollow.blocks import CATEGORIES, Block

POINTS = 700  # in a picture of thousands of allocations


def timeline(blocks: Sequence[Block], device: int = 0, points: int = POINTS) -> dict[str, Any]:
    """The bytes of each category over the allocator's events, in as many points as a picture shows.

    If several events fall on one point, the fullest moment is kept, so no peak is lost.
    """
    changes = _changes([block for block in blocks if block.device == device])
    names = [name for name in CATEGORIES if any(change[2] == name for change in changes)]
    now: Counter[str] = Counter()
    kept: dict[int, tuple[int, int, list[int]]] = {}
    last = changes[-1][0] if changes else 0
    for event, size, category in changes:
        now[category] += size
        stretch, total = event * points // (last + 1), sum(now.values())
        if stretch not in kept or total >= kept[stretch][0]:
            kept[stretch] = total, event, [now[name] for name in names]
    shown = [(event, held) for _, event, held in kept.values()]
    return {
        "categories": names,
        "events": [event for event, _ in shown],
        "bytes": [held for _, held in shown],
        "last": last,
    }


def _changes(blocks: Sequence[Block]) -> list[tuple[int, int, str]]:
    taken = [(block.start, block.bytes, block.category) for block in blocks]
    given = [(b.end, -b.bytes, b.category) for b in blocks if b.end is not None]
    return sorted(taken + given)


def write_snapshot(path: str | Path, blocks: Sequence[Block], segments: Sequence[Any] = ()) -> None:
    """Writes the format of `torch.cuda.memory._dump_snapshot`, for pytorch.org/memory_viz."""
    write_named(Path(path), pickle.dumps(snapshot(blocks, segments)))


def snapshot(blocks: Sequence[Block], segments: Sequence[Any] = ()) -> dict[str, Any]:
    """Each allocation and free; the frame of each says what the memory is for."""
    devices = 1 + max((block.device for block in blocks), default=0)
    return {
        "segments": list(segments),
        "device_traces": [_trace(blocks, device) for device in range(devices)],
        "allocator_settings": {},
        "external_annotations": [],
    }


def _trace(blocks: Sequence[Block], device: int) -> list[dict[str, Any]]:
    entries = []
    for block in blocks:
        if block.device == device:
            entries.append(_entry(block, block.start, "alloc"))
            if block.end is not None:
                entries.append(_entry(block, block.end, "free_requested"))
                entries.append(_entry(block, block.end, "free_completed"))
    return sorted(entries, key=lambda entry: int(entry["time_us"]))


def _entry(block: Block, event: int, action: str) -> dict[str, Any]:
    file, _, line = block.where.rpartition(":")
    of = f" of {block.module}" if block.module else ""
    frame = {"name": block.category + of, "filename": file or "?", "line": int(line or 0)}
    return {
        "action": action,
        "addr": block.address,
        "size": block.bytes,
        "stream": 0,
        "time_us": event,
        "compile_context": "N/A",
        "user_metadata": "",
        "pool_id": (0, 0),
        "frames": [frame],
    }
