"""A Python program in its own process, forked from one that has imported torch already.

For programs that may begin with torch and anydevice imported and nothing done. What tests the start
of Python, an import or a variable that is read at one needs a fresh interpreter: `subprocess.run`.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import IO

SERVER = "import sys; from tests.fork_server import serve; serve(int(sys.argv[1]))()"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def python(
    *words: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    input: str = "",
    timeout: float | None = None,
    whole: bool = False,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run([sys.executable, *words], capture_output=True, text=True)`.

    With `whole=True` Python also takes itself apart in the end: see `fork_server.py`.
    """
    with Process(*words, cwd=cwd, env=env, input=input, whole=whole) as process:
        out, err = process.communicate(timeout)
        return subprocess.CompletedProcess([sys.executable, *words], process.wait(), out, err)


ON_GPUS = """
import os, runpy, sys
from anydevice import virtual
virtual.enable({gpus})
sys.argv[:], sys.path[0] = sys.argv[1:], os.path.dirname(sys.argv[1])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def ranks(
    *words: str | Path, count: int, gpus: int, env: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """A program in so many processes that meet, each on virtual GPUs if there are to be any.

    As torchrun starts them, which takes three imports of torch or more. It has ended with the code
    of the first rank that did not end with 0.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    size = str(count)
    env = {**env, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    env |= {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    before = ("-c", ON_GPUS.format(gpus=gpus)) if gpus else ()
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                Process(*before, *words, env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            )
            for rank in range(count)
        ]
        printed = [process.communicate(timeout) for process in started]
        out, err = ("".join(texts) for texts in zip(*printed, strict=True))
        codes = [process.wait() for process in started]
    return subprocess.CompletedProcess([*words], next(filter(None, codes), 0), out, err)


class Process:
    """A program that runs; as `subprocess.Popen`, as far as tests need it."""

    def __init__(
        self,
        *words: str | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        input: str = "",
        whole: bool = False,
    ) -> None:
        self._files = [tempfile.TemporaryFile() for _ in range(3)]  # noqa: SIM115
        self._read = 0
        self._files[0].write(input.encode())
        self._files[0].seek(0)
        descriptors = {number: file.fileno() for number, file in enumerate(self._files)}
        text = [str(word) for word in words]
        self._child = Child(text, descriptors, cwd=cwd, env=env, whole=whole)
        self.pid = self._child.pid
        self.poll, self.wait, self.kill = self._child.poll, self._child.wait, self._child.kill
        self.send_signal = self._child.send_signal

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()
        for file in self._files:
            file.close()

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def readline(self) -> str:
        """The next line that it prints; nothing where it has ended before."""
        while True:
            ended = self.poll() is not None
            # Not by the file: its place in it is the program's, too.
            read = os.pread(self._files[1].fileno(), 1 << 16, self._read)
            line, newline, _ = read.partition(b"\n")
            if newline or ended:
                self._read += len(line + newline)
                return (line + newline).decode()
            time.sleep(0.001)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it has printed when it has ended."""
        self.wait(timeout)
        return _text(self._files[1]), _text(self._files[2])


class Child:
    """The process itself, with the descriptors that are given it under their numbers."""

    def __init__(
        self,
        words: Sequence[str],
        descriptors: Mapping[int, int],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        session: bool = False,
        whole: bool = False,
    ) -> None:
        self._answer, theirs = socket.socketpair()
        self._code: int | None = None
        described = {
            "words": list(words),
            "descriptors": list(descriptors),
            "session": session,
            "whole": whole,
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
        }
        server, text = _server(), json.dumps(described).encode()
        server.sendall(len(text).to_bytes(4))
        sent = socket.send_fds(server, [text], [theirs.fileno(), *descriptors.values()])
        server.sendall(text[sent:])
        theirs.close()
        self.pid = int.from_bytes(self._answer.recv(8))
        assert self.pid, "the server that forks programs has ended"

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None:
            self._answer.settimeout(timeout)
            try:
                answer = self._answer.recv(8)
            except TimeoutError:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0) from None
            assert answer, "the process that waits for the program has ended"
            self._code = int.from_bytes(answer, signed=True)
            self._answer.close()
        return self._code

    def poll(self) -> int | None:
        try:
            return self.wait(1e-6)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended, and its code is still on the way
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Piped(Child):
    """With a pipe to what it reads and one from what it prints."""

    def __init__(self, *words: str, env: Mapping[str, str], stderr: IO[str]) -> None:
        theirs, to = os.pipe()
        of, its = os.pipe()
        super().__init__(words, {0: theirs, 1: its, 2: stderr.fileno()}, env=env)
        os.close(theirs)
        os.close(its)
        self.stdin, self.stdout = open(to, "w"), open(of)  # noqa: SIM115

    def close(self) -> None:
        self.kill()
        self.wait()
        self.stdin.close()
        self.stdout.close()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


@cache
def _server() -> socket.socket:
    """One for this process; it ends when this process closes its end."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(theirs.fileno())],
        cwd=Path(__file__).parents[1],
        pass_fds=[theirs.fileno()],
        env={**os.environ, **ONE_THREAD},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    theirs.close()
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours
