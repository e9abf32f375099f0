"""The process that forks another process for each run of a sweep; started by processes/pool.py.

Note [The fork server]

A run needs a process: it may crash, take all memory, or change settings of torch, and the next run
must not notice. A new Python imports torch for seconds, more than many a run takes. A fork takes
milliseconds and starts from what is imported. But a process that has used torch cannot be forked:
its threads are gone in the child, and so is its CUDA context. The user's program, which drives the
sweep, has mostly used torch.

So the driver starts this server, a fresh Python that imports torch, does nothing with it, and forks
itself for each job. What connects them:

- The control connection, driver to server: a Setup, then Jobs. With each Job the driver sends one
  end of a pipe, as a file descriptor; that is the line between the driver and the job's process.
  The server replies with an Ended for each process. When the driver closes the connection, or dies,
  the server asks all runs to end, and makes them after GRACE seconds.
- The wake-up socket: SIGCHLD writes to it, so that one `wait` sees jobs and ends of processes.
- Each job's process is a process group, so that what it has started (a loader's workers) ends with
  it, and it asks the kernel to end it when the server does.

Where a fork of a process that has imported torch may crash (macOS), the server imports nothing, and
starts a new Python for each job (`start`). That gets the Setup and its Job through a pipe, whose
other end the server keeps: when it can be read to its end, the server has ended.

`gc.freeze` before a fork keeps the collector from touching what was imported, which would copy all
its memory into the child. The child and the server end with os._exit, because taking torch apart
would take longer than all the above.
"""

import atexit
import gc
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

from anydevice import system
from anydevice.sweep.processes.messages import Ended, Job, Setup

MANY = 3  # runs, after which the server imports what optimizers need
GRACE = 10.0  # seconds that a run has to write its checkpoint when the sweep ends before it


class Server:
    """Forks or starts a process for each job, and reports how it ended."""

    def __init__(self, control: Connection, setup: Setup) -> None:
        self.control, self.setup = control, setup
        self.runs: dict[int, int] = {}  # process id: number of the run
        self.lifelines: dict[int, Connection] = {}  # of processes that were not forked
        self.wakes, wakeup = socket.socketpair()
        for end in (self.wakes, wakeup):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
        self._wakeup = wakeup

    def serve(self) -> tuple[Job, Connection] | None:
        """Returns the job and the line to the driver, in a job's process; None when all is over."""
        while True:
            for ready in wait([self.control, self.wakes]):
                if ready is self.wakes:
                    self.wakes.recv(4096)
                    self.report_ended()
                    continue
                try:
                    job = Job.from_json(self.control.recv_bytes())
                    line = Connection(system.received_open_file(self.control.fileno()))
                except (EOFError, OSError):
                    self.end_all()
                    return None
                if not system.LINUX:
                    self.start(job, line)
                elif self.forked(job.number):
                    return job, line
                line.close()

    def forked(self, number: int) -> bool:
        """True in the new process, which has closed what is the server's."""
        if number == MANY:
            _import_what_optimizers_need()
        pid = system.fork()
        if pid:
            self.runs[pid] = number
            return False
        os.setpgid(0, 0)  # so that what it starts ends with it
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.control.close()
        self.wakes.close()
        self._wakeup.close()
        return True

    def start(self, job: Job, line: Connection) -> None:
        """A new Python that does the job."""
        own, other = Pipe()
        pid = system.new_python(__name__, "main_of_one", other.fileno(), line.fileno())
        other.close()
        self.runs[pid], self.lifelines[pid] = job.number, own
        with suppress(OSError):  # it has ended already
            own.send_bytes(self.setup.to_json())
            own.send_bytes(job.to_json())

    def report_ended(self) -> None:
        """Reports every process that has ended, and ends what it left running."""
        while self.runs:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            _kill_group(pid, signal.SIGKILL)
            number = self.runs.pop(pid)
            if pid in self.lifelines:
                self.lifelines.pop(pid).close()
            code = os.waitstatus_to_exitcode(status)
            with suppress(OSError):  # nobody listens any more
                self.control.send_bytes(Ended(number, code).to_json())

    def end_all(self) -> None:
        """Asks the runs to end, and after a while makes them."""
        for pid in self.runs:
            _kill_group(pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE
        while self.runs and time.monotonic() < deadline:
            self.report_ended()
            time.sleep(0.01)
        for pid in self.runs:
            _kill_group(pid, signal.SIGKILL)


def _kill_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        return os.killpg(pid, number)
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)  # before its setpgid


def _import_torch(machine: dict[str, Any] | None) -> None:
    """Imports torch, with the virtual GPUs of the driver if it has any."""
    if machine:
        from anydevice.virtual.machine import Machine
        from anydevice.virtual.process import environment, import_hook

        if environment.VIRTUAL not in os.environ:
            return import_hook.import_torch(Machine.from_dict(machine))
    import torch  # noqa: F401


def _import_what_optimizers_need() -> None:
    """An optimizer imports 800 modules, in a second: once for all runs, if there are many."""
    import torch._dynamo  # noqa: F401

    gc.freeze()  # a run's collections would touch, and so copy, all these objects


def main(descriptor: int) -> NoReturn:
    """Serves until the other end of the connection closes."""
    control = Connection(descriptor)
    setup = Setup.from_json(control.recv_bytes())
    if system.LINUX:
        _import_torch(setup.machine)
        import_module(setup.worker)

        from anydevice.train import trial  # noqa: F401

    parent = os.getpid()
    gc.freeze()
    work = Server(control, setup).serve()
    if work:
        system.end_with(parent)
        _do(setup, *work)
    _end(0)  # Triton would call what is frozen a leak


def main_of_one(control: int, line: int) -> None:
    """Does one job, in a new Python."""
    server = Connection(control)
    setup, job = Setup.from_json(server.recv_bytes()), Job.from_json(server.recv_bytes())
    system.end_with(os.getppid(), server.fileno())
    _import_torch(setup.machine)
    _do(setup, job, Connection(line))


def _do(setup: Setup, job: Job, line: Connection) -> NoReturn:
    sys.argv[:] = setup.argv
    _end(import_module(setup.worker).main(job, line))


def _end(code: int) -> NoReturn:
    """Ends a process without taking its modules apart, which takes longer than the fork."""
    try:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(code)
