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
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path

SERVER = "import sys; from tests.fork_server import serve; serve(int(sys.argv[1]))()"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def python(
    *words: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    input: str = "",
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run([sys.executable, *words], capture_output=True, text=True)`."""
    arguments = [str(word) for word in words]
    request = {"words": arguments, "cwd": str(cwd or Path.cwd()), "env": dict(env or os.environ)}
    with ExitStack() as stack:
        stdin, *said = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        stdin.write(input.encode())
        stdin.seek(0)
        status = _status(request, [file.fileno() for file in (stdin, *said)], timeout)
        out, err = (_text(file) for file in said)
    return subprocess.CompletedProcess([sys.executable, *arguments], status, out, err)


def _status(request: object, descriptors: list[int], timeout: float | None) -> int:
    server, text = _server(), json.dumps(request).encode()
    server.settimeout(None)
    server.sendall(len(text).to_bytes(4))
    sent = socket.send_fds(server, [text], descriptors)
    server.sendall(text[sent:])
    child = int.from_bytes(server.recv(8, socket.MSG_WAITALL))
    server.settimeout(timeout)
    try:
        return int.from_bytes(_eight(server), signed=True)
    except TimeoutError:
        os.kill(child, signal.SIGKILL)
        server.settimeout(None)
        _eight(server)
        raise subprocess.TimeoutExpired(str(request), timeout or 0) from None


def _eight(server: socket.socket) -> bytes:
    """What the server says of how a child ended."""
    answer = server.recv(8, socket.MSG_WAITALL)
    assert len(answer) == 8, "the server that forks programs has ended"
    return answer


def _text(file: tempfile._TemporaryFileWrapper[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


@cache
def _server() -> socket.socket:
    """One for this process; it ends when this process closes its end."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        cwd=Path(__file__).parents[1],
        env={**os.environ, **ONE_THREAD},
    )
    theirs.close()
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours
