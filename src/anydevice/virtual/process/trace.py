"""The file of `anydevice run --trace`: transfers, synchronisations and memory over time.

It is in Chrome's trace format, which ui.perfetto.dev and chrome://tracing open.
"""

import json
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from anydevice.text import size_text
from anydevice.virtual.events import HOST, Event, listening

Record = dict[str, Any]


class Trace:
    """Writes this process's events to a temporary file, which is renamed when it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        special = path.exists() and not path.is_file()  # a pipe, /dev/stdout
        temporary = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
        self.unfinished = path if special else temporary
        self.file: TextIO | None = None
        self.lock = threading.RLock()
        self.told: deque[Event] = deque()
        self.threads: set[int] = set()
        self.allocated: Counter[int] = Counter()
        self.listening = ExitStack()
        self.listening.enter_context(listening(self.tell))

    def open(self) -> TextIO:
        """The file, begun at the first event: a process without any leaves none."""
        if not self.file:
            self.file = self.unfinished.open("w", encoding="utf-8")
            self.file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
            self.file.write(_line(_name("process_name", " ".join(sys.orig_argv)), first=True))
        return self.file

    def tell(self, event: Event) -> None:
        """Writes one event; an error is kept by who calls, and comes in close()."""
        with self.lock:
            self.told.append(event)
            if len(self.told) > 1:
                return  # freed while the one before is being written: by the garbage collector
            try:
                while self.told:
                    for record in self._records(self.told[0]):
                        self.open().write(_line(record))
                    self.told.popleft()
            finally:
                self.told.clear()

    def close(self) -> None:
        """Gives the file its name, now that it is whole; or says why there is none."""
        try:
            file = self.open()
            self.listening.close()
            file.write("\n]}\n")
            file.flush()
            if self.unfinished != self.path:
                os.fsync(file.fileno())
                self.unfinished.rename(self.path)
        except OSError as error:
            print(f"anydevice: {self.path} is not written: {error}", file=sys.stderr, flush=True)
            if self.unfinished != self.path:
                self.unfinished.unlink(missing_ok=True)

    def abandon(self) -> None:
        """Leaves the file to the process that this one was forked from."""
        if self.file:  # what is still to be written there goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())
        self.listening.close()

    def _records(self, event: Event) -> Iterator[Record]:
        thread = threading.get_native_id()
        if thread not in self.threads:
            self.threads.add(thread)
            yield _name("thread_name", threading.current_thread().name)
        if event.kind == "allocate":
            yield from self._memory(event.destination, event.bytes)
        elif event.kind == "release":
            yield from self._memory(event.source, -event.bytes)
            return
        yield _record("i", _title(event), cat=event.kind, s="t", args=_details(event))

    def _memory(self, device: int, change: int) -> Iterator[Record]:
        self.allocated[device] += change
        figures = {"bytes": self.allocated[device]}
        yield _record("C", f"memory of {_device(device)}", args=figures)


def _title(event: Event) -> str:
    if event.kind == "transfer":
        way = f"{_device(event.source)} → {_device(event.destination)}"
        return f"{size_text(event.bytes)} {way}"
    if event.kind == "allocate":
        return f"allocate {size_text(event.bytes)}"
    return f"wait: {event.op}"


def _details(event: Event) -> Record:
    details: Record = {"where": f"{event.file}:{event.line}", "op": event.op, "bytes": event.bytes}
    if event.kind == "transfer":
        details |= {"pinned": event.pinned, "blocking": event.blocking}
    return details


def _device(index: int) -> str:
    return "host" if index == HOST else f"cuda:{index}"


def _name(kind: str, name: str) -> Record:
    return _record("M", kind, args={"name": name})


def _record(phase: str, name: str, **more: Any) -> Record:
    place = {"pid": os.getpid(), "tid": threading.get_native_id(), "ts": time.time_ns() / 1000}
    return {"ph": phase, "name": name, **place, **more}


def _line(record: Record, first: bool = False) -> str:
    return ("" if first else ",\n") + json.dumps(record, ensure_ascii=False)
