"""The published rules of PyTorch's CUDACachingAllocator, written plainly and slowly.

A segment is a range of addresses, of which some units have memory and some stretches are in use;
everything else (free blocks, splits, current figures) is derived from that whenever it is asked.
It shares nothing with the C++ model, which keeps linked blocks and counts as it goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

MIB = 1 << 20
UNLIMITED = (1 << 64) - 1
NAMES = (
    *("allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes"),
    *("active_bytes", "inactive_split_bytes", "requested_bytes"),
)


def up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


class OutOfMemoryError(Exception):
    """The card has no such memory: `tried`, `total`, `free`, `allocated`, `reserved`."""


@dataclass(eq=False)
class Use:
    size: int
    requested: int
    segment: Segment
    start: int
    freed: bool = False  # but another stream may still read it
    streams: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Segment:
    start: int
    size: int
    stream: int
    small: bool
    unit: int  # 0: all of it has memory; otherwise the units in `mapped` have
    mapped: set[int] = field(default_factory=set)
    uses: dict[int, Use] = field(default_factory=dict)
    last_freed: int = 0

    def has_memory(self, offset: int) -> bool:
        return not self.unit or offset // self.unit in self.mapped

    def parts(self) -> Iterator[tuple[str, int, int]]:
        """("used" | "free" | "unmapped", offset, size), in order, neighbours of a kind joined."""
        offset = 0
        while offset < self.size:
            if offset in self.uses:
                size, kind = self.uses[offset].size, "used"
            else:
                kind = "free" if self.has_memory(offset) else "unmapped"
                end = min([o for o in self.uses if o > offset], default=self.size)
                if self.unit:
                    step = offset
                    while step < end and self.has_memory(step) == (kind == "free"):
                        step = (step // self.unit + 1) * self.unit
                    end = min(end, step)
                size = end - offset
            yield kind, offset, size
            offset += size


@dataclass
class Model:
    total: int
    max_split: int = UNLIMITED
    large_segment: int = 20 * MIB
    gc_threshold: float = 0.0
    expandable: bool = False
    divisions: int = 0

    def __post_init__(self) -> None:
        self.segments: list[Segment] = []
        self.next_address = 1 << 42
        self.fraction: float | None = None
        self.searches = {True: 0, False: 0}
        self.counts = dict.fromkeys(("retries", "ooms", "syncs", "device_alloc", "device_free"), 0)
        self.figures: dict[str, list[int]] = {name: [0, 0, 0, 0] for name in self.current()}

    # ---- figures: the current ones follow from the segments, the others from how those change

    def current(self) -> dict[str, int]:
        now = {f"{name}.{pool}": 0 for name in NAMES for pool in ("all", "small", "large")}
        now |= {"oversize_allocations": 0, "oversize_segments": 0}
        for segment in self.segments:

            def add(name: str, amount: int, small: bool = segment.small) -> None:
                now[f"{name}.all"] += amount
                now[f"{name}.{'small' if small else 'large'}"] += amount

            parts = list(segment.parts())
            if segment.unit:
                add("reserved_bytes", segment.unit * len(segment.mapped))
            else:
                add("segment", 1)
                add("reserved_bytes", segment.size)
                now["oversize_segments"] += segment.size >= self.max_split
            for kind, _, size in parts:
                if kind == "free" and len(parts) > 1 and not segment.unit:
                    add("inactive_split", 1)
                    add("inactive_split_bytes", size)
            for use in segment.uses.values():
                add("active", 1)
                add("active_bytes", use.size)
                add("requested_bytes", use.requested)
                if not use.freed:
                    add("allocation", 1)
                    add("allocated_bytes", use.size)
                    now["oversize_allocations"] += use.size >= self.max_split
        return now

    def note(self) -> None:
        for name, now in self.current().items():
            figure = self.figures[name]
            change = now - figure[0]
            figure[0] = now
            figure[1] = max(figure[1], now)
            figure[2] += max(change, 0)
            figure[3] += max(-change, 0)

    def reset_peak(self) -> None:
        for figure in self.figures.values():
            figure[1] = figure[0]

    def reset_accumulated(self) -> None:
        for figure in self.figures.values():
            figure[2] = figure[3] = 0
        self.counts = dict.fromkeys(self.counts, 0)

    def statistics(self) -> list[int]:
        return [*self.counts.values(), *(n for figure in self.figures.values() for n in figure)]

    @property
    def reserved(self) -> int:
        return self.current()["reserved_bytes.all"]

    @property
    def allowed(self) -> int:
        assert self.fraction is not None
        return int(self.fraction * self.total)

    # ---- the rules

    def rounded(self, size: int) -> int:
        if size < 512:
            return 512
        if self.divisions > 1 and size > 512 * self.divisions:
            if size & (size - 1) == 0:
                return size
            floor = 1 << (size.bit_length() - 1)
            step = floor // (1 << (self.divisions.bit_length() - 1))
            return up(size, step) if step else 2 * floor
        return up(size, 512)

    def new_segment_size(self, size: int) -> int:
        if size <= MIB:
            return 2 * MIB
        return self.large_segment if size < 10 * MIB else up(size, 2 * MIB)

    def free_blocks(self, small: bool, stream: int | None = None) -> list[tuple[int, int, Segment]]:
        found = [
            (size, segment.start + offset, segment)
            for segment in self.segments
            if segment.small == small and stream in (None, segment.stream)
            for kind, offset, size in segment.parts()
            if kind == "free"
        ]
        return sorted(found, key=lambda block: block[:2])

    def room_behind(self, block: tuple[int, int, Segment]) -> int:
        size, start, segment = block
        for kind, offset, extra in segment.parts():
            if segment.start + offset == start + size and kind == "unmapped":
                return size + extra
        return size

    def best_fit(self, size: int, stream: int, small: bool) -> tuple[int, int, Segment] | None:
        if self.fraction is not None and self.gc_threshold > 0:
            self.searches[small] += 1
        fitting = [b for b in self.free_blocks(small, stream) if b[0] >= size]
        if not fitting:
            return None
        best, *others = fitting
        for other in others:
            if not best[2].unit or self.room_behind(other) >= self.room_behind(best):
                break
            best = other
        if size < self.max_split <= best[0]:
            return None
        if size >= self.max_split and best[0] >= size + self.large_segment:
            return None
        return best

    def allocate(self, requested: int, stream: int) -> Use:
        self.finish_waiting()
        size = self.rounded(requested)
        small = size <= MIB
        block = self.best_fit(size, stream, small)
        if block is None:
            if self.fraction is not None and self.gc_threshold > 0:
                self.collect_garbage()
            block = self.from_driver(size, stream, small)
            if block is None and self.release_oversize(size, stream, small):
                block = self.from_driver(size, stream, small)
            if block is None:
                self.release_everything()
                self.counts["retries"] += 1
                block = self.from_driver(size, stream, small)
        if block is None:
            self.counts["ooms"] += 1
            now = self.current()
            raise OutOfMemoryError(
                self.new_segment_size(size),
                self.total,
                self.total - self.reserved,
                now["allocated_bytes.all"],
                now["reserved_bytes.all"],
            )
        return self.hand_out(block, size, requested)

    def hand_out(self, block: tuple[int, int, Segment], size: int, requested: int) -> Use:
        there, start, segment = block
        rest = there - size
        if segment.small or self.expandable:
            split = rest >= 512
        else:
            split = size < self.max_split and rest > MIB
        use = Use(size if split else there, requested, segment, start - segment.start)
        segment.uses[use.start] = use
        self.note()
        return use

    def free(self, use: Use) -> None:
        use.freed = True
        self.note()
        if not use.streams:
            self.end(use)

    def end(self, use: Use) -> None:
        del use.segment.uses[use.start]
        use.segment.last_freed = self.searches[use.segment.small]
        self.note()

    def record_stream(self, use: Use, stream: int) -> None:
        if stream != use.segment.stream:
            use.streams.add(stream)

    def finish_waiting(self) -> None:
        waiting = [u for s in self.segments for u in s.uses.values() if u.freed]
        for use in waiting:
            self.end(use)

    # ---- the driver

    def from_driver(self, size: int, stream: int, small: bool) -> tuple[int, int, Segment] | None:
        asked = self.new_segment_size(size)
        if self.fraction is not None and self.reserved + asked > self.allowed:
            return None
        if self.expandable:
            return self.grow(size, stream, small)
        if asked > self.total - self.reserved:
            return None
        segment = self.add_segment(asked, stream, small, unit=0)
        self.counts["device_alloc"] += 1
        self.note()
        return asked, segment.start, segment

    def add_segment(self, size: int, stream: int, small: bool, unit: int) -> Segment:
        segment = Segment(self.next_address, size, stream, small, unit)
        self.next_address += up(size, 2 * MIB)
        self.segments.append(segment)
        return segment

    def grow(self, size: int, stream: int, small: bool) -> tuple[int, int, Segment] | None:
        segment, start = self.place_to_grow(size, stream, small)
        offset = start
        while offset < start + size:
            kind, part, length = next(p for p in segment.parts() if p[1] + p[2] > offset)
            if kind == "unmapped":
                length = up(min(length, start + size - part), segment.unit)
                if length > self.total - self.reserved:
                    return None
                first = part // segment.unit
                segment.mapped |= set(range(first, first + length // segment.unit))
                self.counts["device_alloc"] += 1
                self.note()
            offset = part + length
        there = next(length for _, part, length in segment.parts() if part == start)
        return there, segment.start + start, segment

    def place_to_grow(self, size: int, stream: int, small: bool) -> tuple[Segment, int]:
        for segment in self.segments:
            if not segment.unit or (segment.stream, segment.small) != (stream, small):
                continue
            parts = list(segment.parts())
            for i, (kind, _, _) in enumerate(parts):
                if kind != "unmapped":
                    continue
                first = i - 1 if i and parts[i - 1][0] == "free" else i
                room = 0
                for part, _, length in parts[first:]:
                    if part == "used":
                        break
                    room += length
                if room >= size:
                    return segment, parts[first][1]
        unit = 2 * MIB if small else self.large_segment
        return self.add_segment(up(self.total + self.total // 8, unit), stream, small, unit), 0

    def release(self, segment: Segment) -> None:
        self.segments.remove(segment)
        self.counts["device_free"] += 1
        self.note()

    def whole(self, small: bool) -> list[tuple[int, int, Segment]]:
        return [b for b in self.free_blocks(small) if not b[2].unit and b[0] == b[2].size]

    def release_everything(self) -> None:
        self.counts["syncs"] += 1
        self.finish_waiting()
        for small in (False, True):
            for _, _, segment in self.whole(small):
                self.release(segment)
            for size, start, segment in self.free_blocks(small):
                if segment.unit:
                    self.unmap(segment, start - segment.start, size)

    def unmap(self, segment: Segment, offset: int, size: int) -> None:
        units = range(up(offset, segment.unit) // segment.unit, (offset + size) // segment.unit)
        if units:
            segment.mapped -= set(units)
            self.counts["device_free"] += 1
            if not segment.mapped:
                self.segments.remove(segment)
            self.note()

    def release_oversize(self, size: int, stream: int, small: bool) -> bool:
        if self.max_split == UNLIMITED:
            return False
        needed = max(size, self.max_split)
        blocks = self.free_blocks(small, stream)
        enough = [b for b in blocks if b[0] >= needed]
        if enough:
            self.release(enough[0][2])
            return True
        released = 0
        for there, _, segment in reversed(blocks):
            if released >= needed or there < self.max_split:
                break
            released += there
            self.release(segment)
        return released >= needed

    def collect_garbage(self) -> None:
        threshold = int(self.gc_threshold * self.allowed)
        if self.reserved <= threshold:
            return
        target = self.reserved - threshold
        old = {b[2]: self.searches[False] - b[2].last_freed for b in self.whole(False)}
        reclaimed, progress = 0, True
        while old and reclaimed < target and progress:
            average = sum(old.values()) / len(old)
            due = [segment for segment, age in old.items() if age >= average]
            progress = bool(due)
            for segment in due:
                reclaimed += segment.size
                del old[segment]
                self.release(segment)
