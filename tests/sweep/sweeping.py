"""`anydevice sweep` as a program whose server is a fork of it, and need not import torch again.

python tests/sweep/sweeping.py ARGUMENTS OF SWEEP
"""

import os
import subprocess
import sys
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NoReturn

from anydevice.__main__ import main
from anydevice.sweep.processes import pool


class Forked:
    """As far as a sweep needs it, the `subprocess.Popen` of a Python program with `-c`."""

    def __init__(self, command: list[str], *, pass_fds: list[int], **_: Any) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become(command[2], {0, 1, 2, *pass_fds})

    def poll(self) -> int | None:
        if self.returncode is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode

    def wait(self, timeout: float = 60) -> int:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.005)
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, 9)


def _become(program: str, kept: set[int]) -> NoReturn:
    os.setsid()
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):  # the one that listed them
                os.close(int(name))
    code = 0
    try:
        exec(program, {"__name__": "server"})
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        code = 1
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    pool.subprocess = SimpleNamespace(Popen=Forked, DEVNULL=None)  # type: ignore[assignment]
    sys.path[0] = os.getcwd()
    sys.argv[:] = ["anydevice", "sweep", *sys.argv[1:]]
    main()
