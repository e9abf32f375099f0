"""A function in a separate process, in a sandbox for what it writes."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from tempfile import TemporaryDirectory, TemporaryFile
from time import monotonic
from typing import Any, NoReturn, Self, TextIO, TypeVar, cast
from unittest.mock import patch

import torch

from anydevice import system
from anydevice.notices import say_once
from anydevice.pickling import by_value
from anydevice.plan.hollow import compilations, sandbox, without_dynamo
from anydevice.plan.hollow.failures import CannotPlanError
from anydevice.text import signal_name
from anydevice.virtual import build, enabled
from anydevice.virtual.machine import Machine, put_in_place

T = TypeVar("T")
NOT_SENT = "expected a program that can be sent to a new process, which this system needs"
LONG = 5  # seconds, after which a notice says that it is still running
AGAIN = 60  # seconds, before the same notice is printed again
LOOK = 0.1  # seconds between two looks at what it prints
FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


# Note [The fork and the pipe]
# A program may change anything in its process: random states, PyTorch's defaults, modules, signal
# handlers. So a hollow run happens in a child made by os.fork(). PyTorch is imported there already,
# and the function need not be pickled: lambdas, notebooks and a Trial with its data all work.
#
# - The child answers through a pipe: first a notice for the user (empty if there is none), then one
#   tuple, (True, result) or (False, error). If the pipe closes before that, the process died, and
#   waitpid says of what.
# - The parent's threads do not exist in the child, and a lock that one of them held stays locked.
#   So the child computes in one thread, and what starts threads or takes long to import is loaded
#   before the fork. CUDA cannot be used after a fork: real GPUs are hidden.
# - The child writes its output to a temporary file. The parent copies it to its own standard error
#   while it waits, if that is asked for. Otherwise it is shown only if the program failed.
# - The child ends by os._exit(): what the parent registered with atexit must not run twice.
# - What the child writes to files is dropped by the sandbox; what compilers keep comes through the
#   pipe (compilations.py).
#
# Where a fork of a process that has imported PyTorch may crash (macOS), the child is a new Python.
# The function, and the virtual GPUs that there are, come to it through the pipe, which then is open
# in both directions: so what is planned has to be something that can be pickled.


def isolated(function: Callable[[], T], *, shown: bool = False, waiting: str = "") -> T:
    """What the function returns, or raises, in another process.

    Args:
        function: What to call.
        shown: Show what it prints, on standard error.
        waiting: What to say if it takes long.
    """
    with Child(function, shown=shown, waiting=waiting) as child:
        while not child.has_ended(LOOK):
            pass
        return cast(T, child.result())


class Child:
    """A function in another process: `has_ended` until it has, then its `result`.

    Args:
        function: What to call.
        shown: Show what it prints, on standard error.
        waiting: What to say if it takes long.
        hear: Called with each other thing that it reports by `tell`.
    """

    def __init__(
        self,
        function: Callable[[], Any],
        *,
        shown: bool = False,
        waiting: str = "",
        hear: Callable[[Any], None] | None = None,
    ) -> None:
        self._function, self._shown, self._waiting, self._hear = function, shown, waiting, hear
        self._files = ExitStack()
        self._answered: tuple[bool, Any] | None = None
        self._status = 0

    def __enter__(self) -> Self:
        _load_what_torch_loads_late()
        self._said = self._files.enter_context(TemporaryFile("w+", errors="replace"))
        folder = self._files.enter_context(
            TemporaryDirectory(prefix="anydevice-plan-", ignore_cleanup_errors=True)
        )
        compilations.prepare()
        request = None if system.LINUX else _packed(self._function)
        self._ours, theirs = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        if request is not None:
            self._pid = system.new_python(__name__, "main", theirs.fileno(), self._said.fileno())
        elif (pid := system.fork()) == 0:
            self._ours.close()
            _answer(self._function, theirs, self._said, folder)
        else:
            self._pid = pid
        theirs.close()
        if request is not None:
            self.send((folder, *request))
        self._watched = _Watched(self._said, self._shown, self._waiting)
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        with self._files:
            if kind and not self._status and self._answered is None:
                os.kill(self._pid, signal.SIGKILL)
            self._ours.close()
            if self._answered is None:
                os.waitpid(self._pid, 0)

    def send(self, thing: Any) -> None:
        """What `ask` returns there."""
        with suppress(OSError):  # the child has ended, as the missing answer shows
            self._ours.send(thing)

    def fileno(self) -> int:
        """To wait for several."""
        return self._ours.fileno()

    def has_ended(self, seconds: float) -> bool:
        """Whether there is an answer; waits so long for it."""
        while self._answered is None and self._ours.poll(seconds):
            self._take()
        if self._answered is None:
            self._watched.look()
        return self._answered is not None

    def _take(self) -> None:
        try:
            told = self._ours.recv()
        except (EOFError, ConnectionResetError):
            told = False, None
        self._watched.look()
        if isinstance(told, tuple):
            self._ours.close()
            _, self._status = os.waitpid(self._pid, 0)
            self._answered = told
        elif isinstance(told, str):
            if told:
                say_once(told)
        elif isinstance(told, compilations.Files):
            told.keep()
        elif isinstance(told, without_dynamo.Loaded):
            _late.append(without_dynamo.DYNAMO)
        elif self._hear:
            self._hear(told)

    def result(self) -> Any:
        """What the function returned; or raises what it raised."""
        returned, result = cast(tuple[bool, Any], self._answered)
        if returned:
            return result
        error = result or _died(self._status)
        if isinstance(error, CannotPlanError):
            self._said.seek(0)
            error.details = error.details or ("" if self._shown else self._said.read())
        raise error


_parent: list[Connection] = []  # in the child


def tell(thing: Any) -> None:
    """In the child: what the parent's `hear` gets; no string and no tuple."""
    if _parent:
        _parent[-1].send(thing)


def ask(thing: Any) -> Any:
    """In the child: reports it, and waits for what the parent sends."""
    tell(thing)
    return _parent[-1].recv()


def _packed(function: Callable[[], Any]) -> tuple[Any, ...]:
    """What a new Python needs to call it; an error if that cannot be sent."""
    whole = find_spec("cloudpickle") is not None
    try:
        data = by_value(function) if whole else pickle.dumps(function)
    except Exception as error:
        raise CannotPlanError(f"{NOT_SENT}, got one that cannot be pickled ({error}).") from error
    if not whole and b"__main__" in data:  # which is another program there
        raise CannotPlanError(
            f"{NOT_SENT}, got one of the program itself: pip install 'anydevice[sweep]', which "
            "brings cloudpickle, or move it to a module."
        )
    machine = enabled()
    return data, sys.argv, machine and machine.to_dict()


def main(descriptor: int, output: int) -> None:
    """The child's side in a new Python."""
    connection = Connection(descriptor)
    said = open(output, "w+", errors="replace")  # noqa: SIM115
    folder, data, sys.argv[:], machine = connection.recv()
    system.end_with(os.getppid(), descriptor)

    def called() -> Any:
        _load_what_torch_loads_late()
        if machine:
            put_in_place(Machine.from_dict(machine))
        return pickle.loads(data)()

    _answer(called, connection, said, folder)


_late: list[str] = []  # in the parent: modules that a child imported, and the next one may


def _load_what_torch_loads_late() -> None:
    """Once, instead of in each child."""
    while _late:
        import_module(_late.pop())
    try:
        build.library()
    except build.BuildError as error:
        raise CannotPlanError(str(error)) from error


def _hide_real_gpus() -> None:
    """PyTorch counts the visible GPUs once per process: here it finds none."""
    with patch.dict(os.environ, CUDA_VISIBLE_DEVICES=""):
        getattr(torch._C, "_cuda_getDeviceCount", int)()


_notices: dict[str, float] = {}  # when each was printed


def _say(notice: str) -> None:
    """A plan takes several runs: a notice of one holds for the next, too."""
    if monotonic() - _notices.get(notice, -AGAIN) >= AGAIN:
        sys.stderr.write(f"anydevice: {notice} …\n")
        _notices[notice] = monotonic()


@dataclass
class _Watched:
    """What a child prints, and for how long it has been running."""

    said: TextIO
    shown: bool
    waiting: str
    since: float = field(default_factory=monotonic)
    read: int = 0

    def look(self) -> None:
        """Copies what is new, and says that it takes long."""
        if self.shown:
            new = os.pread(self.said.fileno(), 1 << 20, self.read)
            self.read += len(new)
            sys.stderr.write(new.decode(errors="replace"))
            sys.stderr.flush()
        if self.waiting and monotonic() - self.since > LONG:
            _say(self.waiting)
            self.waiting = ""


def _answer(
    function: Callable[[], Any], connection: Connection, said: TextIO, folder: str
) -> NoReturn:
    """The child's side: it ends here, without the program's own exit handlers."""
    try:
        for descriptor in (1, 2):
            os.dup2(said.fileno(), descriptor)
        system.show_crashes(said.fileno(), all_threads=False)  # the program's lines if it crashes
        sys.stdout = sys.stderr = said  # in a notebook these do not write to 1 and 2
        said.reconfigure(line_buffering=True)  # type: ignore[attr-defined]
        gc.freeze()  # the child need not collect the parent's objects
        added = compilations.Added(compilations.prepare())
        connection.send(sandbox.enter(folder, {connection.fileno(), said.fileno(), 0, 1, 2}))
        _parent.append(connection)
        torch.set_num_threads(1)  # the parent's threads are not here
        _hide_real_gpus()
        result: Any = True, function()
    except BaseException as error:
        result = False, error.with_traceback(None)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        with suppress(OSError, NameError):
            added.tell(connection)
            if without_dynamo.DYNAMO in sys.modules:
                connection.send(without_dynamo.Loaded())
        connection.send(result)
        gc.collect()  # a DataLoader's workers end with it
    finally:
        os._exit(0)


def _died(status: int) -> CannotPlanError:
    code = os.waitstatus_to_exitcode(status)
    how = signal_name(-code) if code < 0 else f"exit code {code}"
    why = ""
    if -code in FAULTS:
        why = (
            ": native code may have used memory that a hollow GPU does not have. If it is "
            "PyTorch's own code, please report it as a bug in anydevice"
        )
    elif -code == signal.SIGKILL:
        why = ": the system may have stopped it because the host ran out of memory"
    return CannotPlanError(
        f"expected a program that steps an optimizer, got one whose process ended with {how}{why}."
    )
