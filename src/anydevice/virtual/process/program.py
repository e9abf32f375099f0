"""A process of `anydevice run`: GPUs as torch is imported, errors explained, a tally at the end."""

import atexit
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from anydevice.errors import UsageError
from anydevice.virtual import visible
from anydevice.virtual.process import tally
from anydevice.virtual.process.environment import MAIN, REPORTS, VIRTUAL, Inherited
from anydevice.virtual.process.import_hook import Finder
from anydevice.virtual.process.trace import Trace

_trace: Trace | None = None


@cache
def _inherited() -> Inherited:
    """What launch.py was asked for."""
    return Inherited.from_json(os.environ[VIRTUAL])


def _is_main() -> bool:
    """Whether this process is the program itself, not one that it started."""
    return os.environ.get(MAIN) == str(os.getpid())


class _Boot(Finder):
    """Ends the process if there can be no virtual GPUs: the program was written for them."""

    def _loaded_c(self, module: ModuleType) -> None:
        with _ending_in_a_sentence(), visible.real_gpus_hidden(_inherited().hide_real_gpus):
            super()._loaded_c(module)

    def _loaded_torch(self, module: ModuleType) -> None:
        with _ending_in_a_sentence():
            super()._loaded_torch(module)


@contextmanager
def _ending_in_a_sentence() -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        print(f"anydevice: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def finder() -> Any:
    """Finds torch in this process."""
    return _Boot(_inherited().machine, when_whole=_start)


def end() -> None:
    """The last thing a process does: it writes its trace, and prints its tally or leaves it."""
    if _trace and (_is_main() or _trace.file):
        _trace.close()
    if _is_main():
        tally.report(_inherited().machine, os.environ[REPORTS])
    elif REPORTS in os.environ:  # children of pytest have nowhere to leave it
        tally.leave(os.environ[REPORTS])


def _start() -> None:
    if not _is_main():
        atexit.register(end)
    _start_trace()
    os.register_at_fork(after_in_child=_forked)
    _explain_uncaught_errors()


def _start_trace() -> None:
    """In the file that was asked for; other processes have `trace.1234.json` next to it."""
    global _trace
    if trace := _inherited().trace:
        path = Path(trace)
        own = path if _is_main() else path.with_suffix(f".{os.getpid()}{path.suffix}")
        _trace = Trace(own)


def _forked() -> None:
    """A forked child counts and writes from nothing."""
    tally.forget()
    if _trace:
        _trace.abandon()
        _start_trace()


def _explain_uncaught_errors() -> None:
    print_error, print_error_of_thread = sys.excepthook, threading.excepthook

    def explain(kind: Any, error: Any, traceback: Any) -> None:
        _annotate(error)
        print_error(kind, error, traceback)

    def explain_in_thread(what: Any) -> None:
        _annotate(what.exc_value)
        print_error_of_thread(what)

    sys.excepthook, threading.excepthook = explain, explain_in_thread


def _annotate(error: BaseException | None) -> None:
    if not isinstance(error, Exception):  # an import makes Python forget Ctrl-C
        return
    from anydevice.devices.explain.explanation import annotate

    annotate(error)
