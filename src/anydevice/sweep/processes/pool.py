"""The driver's side of the server that forks a process for each run."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from anydevice import system
from anydevice.sweep.processes.messages import Ended, Job, Report, Setup, Verdict
from anydevice.sweep.processes.server import GRACE
from anydevice.virtual import enabled

PROGRAM = (
    "import sys; sys.path[:] = {!r}; from anydevice.sweep.processes.server import main; main({})"
)


class Processes:
    """The processes of a sweep's jobs; `close()` ends those that are left.

    Args:
        worker: The module whose `main(job, line)` does a job, in a process of its server.
    """

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._lines: dict[int, Connection | None] = {}  # None: it has nothing more to say
        self._sent: dict[int, Connection] = {}
        self._started = 0
        self._serve()

    def start(self, job: Job) -> int:
        """Begins a job, and gives the number by which its reports name it."""
        self._started += 1
        own, other = Pipe()
        self._lines[self._started] = own
        with suppress(OSError):  # the server has just ended: reports() finds that out
            self._control.send_bytes(replace(job, number=self._started).to_json())
            system.send_open_file(self._control.fileno(), other.fileno())
        if system.LINUX:
            other.close()
        else:
            self._sent[self._started] = (
                other  # macOS loses it if it is closed before it is received
            )
        return self._started

    def reports(self, timeout: float | None) -> Iterator[tuple[int, Report]]:
        """What the jobs report, each with its number; Ended is the last from each."""
        numbers = {line: number for number, line in self._lines.items() if line}
        for ready in wait([self._control, *numbers], timeout):
            if ready is self._control:
                yield from self._ended()
            else:
                yield from self._said(numbers[ready])  # type: ignore[index]

    def answer(self, number: int, verdict: bool) -> None:
        """Replies to a run that has asked whether it continues."""
        line = self._lines[number]
        with suppress(OSError):  # it has ended
            if line:
                line.send_bytes(Verdict(verdict).to_json())

    def close(self) -> None:
        """Ends the jobs that are left, and waits for them; a second Ctrl-C does not wait."""
        self._control.close()
        try:
            self._server.wait(GRACE + 10)
        except BaseException:
            self._server.kill()  # and its children with it
            self._server.wait()
            raise
        finally:
            for line in self._lines.values():
                if line:
                    line.close()

    def _serve(self) -> None:
        self._control, other = Pipe()
        self._server = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(sys.path, other.fileno())],
            pass_fds=[other.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C goes to the driver alone, which ends the runs
        )
        other.close()
        machine = enabled()
        setup = Setup(self._worker, sys.argv, machine.to_dict() if machine else None)
        self._control.send_bytes(setup.to_json())

    def _said(self, number: int) -> Iterator[tuple[int, Report]]:
        line = self._lines.get(number)
        try:
            while line and line.poll():
                yield number, Report.from_json(line.recv_bytes())
        except (EOFError, OSError):
            if line:
                line.close()
            self._lines[number] = None

    def _ended(self) -> Iterator[tuple[int, Report]]:
        """How jobs ended; if the server itself has ended, all have, and another one is started."""
        try:
            endings = [Ended.from_json(self._control.recv_bytes())]
        except (EOFError, OSError):
            code = self._server.wait()
            if not self._lines:
                raise RuntimeError(f"the server of the sweep's runs ended with {code}") from None
            endings = [Ended(number, -signal.SIGKILL) for number in self._lines]
            self._control.close()
            self._serve()
        for ending in endings:
            yield from self._said(ending.number)
            line = self._lines.pop(ending.number)
            self._sent.pop(ending.number, None)
            if line:
                line.close()
            yield ending.number, ending
