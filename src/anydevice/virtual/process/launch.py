"""`anydevice run`: an unmodified program in a new Python, where torch finds virtual GPUs.

The command becomes that Python: the program has its terminal, signals, exit code and tracebacks.
"""

import os
import re
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from anydevice.errors import UsageError
from anydevice.files import lives
from anydevice.options import (
    PROGRAMS,
    HelpWanted,
    command_path,
    misplaced_option,
    options_before_program,
    program_arguments,
)

A_DAY = 24 * 3600.0
HELP = """\
Usage: anydevice run [options] program.py [arguments]
       anydevice run [options] -m module [arguments]
       anydevice run [options] torchrun [arguments]

Run a PyTorch program on GPUs that are not there. It sees them at `cuda`, as do
the processes that it starts; the CPU computes the numbers. What follows the
program's name is the program's.

Options:
  --gpus N       how many GPUs, 1 to 16; 1 if not given
  --gpu KIND     which kind; h100 if not given. `anydevice devices --known`
                 lists them
  --memory SIZE  a GPU's memory, such as 16GiB, if not the card's own
  --trace FILE   write transfers, synchronisations and allocations there, for
                 ui.perfetto.dev
  --help         show this and exit
"""
OPTIONS = ("--gpus", "--gpu", "--memory", "--trace")
INTERPRETER = re.compile(r"python(3(\.\d+)?)?")
WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")  # Python's options


@dataclass
class Options:
    """What `anydevice run` was asked for."""

    gpus: str = "1"
    gpu: str = "h100"
    memory: str | None = None
    trace: str | None = None
    python: list[str] = field(default_factory=lambda: [sys.executable])  # and its own options
    program: list[str] = field(default_factory=list)  # and its arguments; empty: stdin


def main(arguments: list[str]) -> NoReturn:
    """Run the program; wrong use is one sentence and exit code 2."""
    try:
        options = parse(arguments)
        environment = prepare(options)
    except HelpWanted:
        print(HELP, end="")
        sys.exit(0)
    except UsageError as error:
        print(f"anydevice: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    if misplaced := misplaced_option("run", options.program, OPTIONS):
        print(f"anydevice: {misplaced}", file=sys.stderr)
    os.execve(options.python[0], [*options.python, *options.program], environment)


def parse(arguments: list[str]) -> Options:
    """What the arguments of `anydevice run` ask for."""
    given, rest = options_before_program("run", arguments, values=OPTIONS)
    options = Options()
    for name, value in given:
        setattr(options, name.removeprefix("--"), value)
    if rest and INTERPRETER.fullmatch(Path(rest[0]).name):
        options.python, options.program = _interpreter(rest)
    else:
        options.program = program_arguments(rest)
    return options


def prepare(options: Options) -> dict[str, str]:
    """The environment that gives a Python its virtual GPUs; wrong use comes up here."""
    from anydevice.virtual.machine import machine
    from anydevice.virtual.process import environment

    count = options.gpus
    gpus = int(count) if count.isascii() and count.isdecimal() else count
    wanted = machine(gpus, options.gpu, memory=options.memory)  # type: ignore[arg-type]
    changed = {
        **os.environ,
        **environment.for_torchrun(options.program),
        **environment.changes(wanted, trace=_trace_file(options.trace)),
        environment.MAIN: str(os.getpid()),
        environment.REPORTS: _folder_for_reports(),
    }
    return {name: value for name, value in changed.items() if value is not None}


def _interpreter(arguments: list[str]) -> tuple[list[str], list[str]]:
    """A Python by its name, with its own options; and its program, if it has one."""
    found = command_path(arguments[0])
    if found is None:
        raise UsageError(f"expected a program, got {arguments[0]}, which does not exist.")
    options = _options_of_python(arguments[1:])
    program = arguments[1 + len(options) :]
    if program and _is_of_this_environment(found):  # another's modules cannot be looked up here
        program = program_arguments(program)
    return [found, *options], program


def _is_of_this_environment(command: str) -> bool:
    return Path(command).parent.resolve() == Path(sys.executable).parent.resolve()


def _options_of_python(arguments: list[str]) -> list[str]:
    end = 0
    while (
        end < len(arguments) and arguments[end].startswith("-") and arguments[end] not in PROGRAMS
    ):
        option = arguments[end]
        if re.fullmatch(r"-[a-zA-Z]*[IES][a-zA-Z]*", option) and option[:2] not in WITH_VALUE:
            raise UsageError(
                f"expected a Python that reads its environment, got {option}, with which it "
                "ignores the variables that give it virtual GPUs: leave that out."
            )
        end += 2 if option in WITH_VALUE else 1
    return arguments[:end]


def _trace_file(name: str | None) -> str | None:
    if name is None:
        return None
    path = Path(name).absolute()
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"expected a file for --trace, in a folder that exists, got {name}.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"expected a file that can be written for --trace, got {name}.")
    return str(path)


def _folder_for_reports() -> str:
    """Where the program's other processes leave what they count; its end removes it."""
    parent = os.environ.get("TMPDIR") or "/tmp"
    _remove_old_reports(Path(parent))
    folder = os.path.join(parent, f"anydevice-run-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        os.mkdir(folder, mode=0o700)
    except OSError as error:
        raise UsageError(
            f"expected a folder for temporary files that can be written, got {parent} "
            f"({error.strerror}): set TMPDIR to one."
        ) from error
    return folder


def _remove_old_reports(parent: Path) -> None:
    """Those of programs that were killed over a day ago."""
    for folder in parent.glob("anydevice-run-[0-9]*"):
        with suppress(OSError):
            old = time.time() - folder.stat().st_mtime > A_DAY
            if old and not lives(folder.name.split("-")[2]):
                shutil.rmtree(folder)
