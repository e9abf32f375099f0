"""The driver's side of the server that forks a process for each run."""

import base64
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection, wait
from typing import Any

from anydevice.sweep.experiment import Shipped
from anydevice.sweep.processes.server import GRACE
from anydevice.virtual import enabled

PROGRAM = (
    "import sys; sys.path[:] = {!r}; from anydevice.sweep.processes.server import main; main({})"
)


class Processes:
    """The processes of a sweep's runs; `close()` ends those that are left."""

    def __init__(self, experiment: Shipped) -> None:
        self._experiment = {**vars(experiment), "data": base64.b64encode(experiment.data).decode()}
        self._lines: dict[int, Connection | None] = {}  # None: it has nothing more to say
        self._started = 0
        self._serve()

    def start(self, job: dict[str, Any]) -> int:
        """Begins a run, and gives the number by which its messages name it."""
        self._started += 1
        own, other = Pipe()
        order = {**job, "number": self._started, "experiment": self._experiment}
        self._lines[self._started] = own
        with suppress(OSError):  # the server has just ended: messages() finds that out
            self._control.send_bytes(json.dumps(order).encode())
            reduction.send_handle(self._control, other.fileno(), self._server.pid)
        other.close()
        return self._started

    def messages(self, timeout: float | None) -> Iterator[tuple[int, dict[str, Any]]]:
        """What the runs say, each with its number; {"code": …} is the last from each."""
        numbers = {line: number for number, line in self._lines.items() if line}
        for ready in wait([self._control, *numbers], timeout):
            if ready is self._control:
                yield from self._ended()
            else:
                yield from self._said(numbers[ready])  # type: ignore[index]

    def answer(self, number: int, verdict: bool) -> None:
        """Replies to a run that has asked whether it goes on."""
        line = self._lines[number]
        with suppress(OSError):  # it has ended
            if line:
                line.send_bytes(json.dumps(verdict).encode())

    def close(self) -> None:
        """Ends all that is left, and waits until it has ended; a second Ctrl-C does not wait."""
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
            start_new_session=True,  # Ctrl-C is the driver's, which ends the runs in its way
        )
        other.close()
        setting = {"argv": sys.argv, "machine": _machine()}
        self._control.send_bytes(json.dumps(setting).encode())

    def _said(self, number: int) -> Iterator[tuple[int, dict[str, Any]]]:
        line = self._lines.get(number)
        try:
            while line and line.poll():
                yield number, json.loads(line.recv_bytes())
        except (EOFError, OSError):
            if line:
                line.close()
            self._lines[number] = None

    def _ended(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """How runs ended; if the server itself has, all of them have, and there is another one."""
        try:
            endings = [json.loads(self._control.recv_bytes())]
        except (EOFError, OSError):
            code = self._server.wait()
            if not self._lines:
                raise RuntimeError(f"the server of the sweep's runs ended with {code}") from None
            endings = [{"number": number, "code": -signal.SIGKILL} for number in self._lines]
            self._control.close()
            self._serve()
        for ending in endings:
            number = ending["number"]
            yield from self._said(number)
            line = self._lines.pop(number)
            if line:
                line.close()
            yield number, {"code": ending["code"]}


def _machine() -> dict[str, Any] | None:
    """The virtual GPUs of this process, as the server is to have them."""
    machine = enabled()
    if machine is None:
        return None
    gpu = machine.gpu
    return {
        "gpus": machine.gpus,
        "gpu": gpu.kind,
        "memory": gpu.memory,
        "hollow": machine.hollow,
    }
