"""Commands that run at the same time, and end with this process, however it ends.

Note [A build that is killed]
A compiler's driver starts another process for the work, and a signal to the driver, or the end of
this process, leaves that one running for minutes. So the commands are in a process group whose
leader is a shell that waits for the end of its input. The input is a pipe that this process alone
holds open: if it ends, even by SIGKILL, the shell reads the end and kills the group, itself too.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from anydevice import system

KILL_AT_END = ("/bin/sh", "-c", "read line; kill -KILL 0")
POLL = 0.1  # seconds between two looks at the commands
ERASE = "\r\x1b[K"  # the line that the cursor is in


@contextmanager
def group() -> Iterator[int]:
    """A process group, which ends with the block or with this process."""
    leader = subprocess.Popen(
        KILL_AT_END,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    try:
        yield leader.pid
    finally:
        os.killpg(leader.pid, signal.SIGKILL)
        leader.communicate()


class JobFailed(Exception):  # noqa: N818
    """A command ended with another exit code than 0."""


def run(
    commands: Mapping[str, Sequence[str]], folder: Path, output: IO[str], progress: "Progress"
) -> Iterator[str]:
    """Runs commands, as many at once as there are cores; yields the name of each that is done.

    Args:
        commands: The commands by the names that are shown.
        folder: Where they put temporary files.
        output: Where they write.
        progress: Shows what runs.
    """
    waiting, running = list(commands), dict[str, subprocess.Popen[bytes]]()
    with group() as together:
        while waiting or running:
            while waiting and len(running) < system.usable_cores():
                name = waiting.pop(0)
                running[name] = subprocess.Popen(
                    commands[name],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "TMPDIR": str(folder)},
                    process_group=together,
                )
            progress.show(running)
            time.sleep(POLL)
            for name in [name for name, job in running.items() if job.poll() is not None]:
                if running.pop(name).returncode:
                    raise JobFailed(name)
                progress.finished(name)
                yield name


class Progress:
    """What is done just now: one line that changes on a terminal, plain lines elsewhere.

    Args:
        title: How the line begins.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self._begin = time.monotonic()
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        if not self._terminal:
            self.say(f"{title} …")

    def seconds(self) -> str:
        """How long it has taken."""
        return f"{time.monotonic() - self._begin:.0f} s"

    def show(self, names: Iterable[str]) -> None:
        """On a terminal, what runs and for how long."""
        if self._terminal:
            line = f"anydevice: {self.title}: {', '.join(names)} … {self.seconds()}"
            _write(ERASE + line[: shutil.get_terminal_size().columns - 1])

    def finished(self, name: str) -> None:
        """Elsewhere, a line for what is finished."""
        if not self._terminal:
            self.say(f"{name} done after {self.seconds()}")

    def clear(self) -> None:
        """Removes the line that changes."""
        if self._terminal:
            _write(ERASE)

    def say(self, sentence: str) -> None:
        """A line that stays."""
        _write(f"{ERASE if self._terminal else ''}anydevice: {sentence}\n")


def _write(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(text)
        sys.stderr.flush()
