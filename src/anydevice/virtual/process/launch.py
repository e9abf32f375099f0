"""`anydevice run`: an unmodified program in a Python of its own, where torch finds virtual GPUs.

The command becomes that Python: the program has its terminal, signals, exit code and tracebacks.
"""

import difflib
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from anydevice.errors import UsageError
from anydevice.files import lives

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
class Order:
    """What `anydevice run` was asked for."""

    gpus: str = "1"
    gpu: str = "h100"
    memory: str | None = None
    trace: str | None = None
    python: list[str] = field(default_factory=lambda: [sys.executable])  # and its own options
    program: list[str] = field(default_factory=list)  # and its words; none: Python reads its input


def main(words: list[str]) -> NoReturn:
    """Run the program; wrong use is one sentence and exit code 2."""
    try:
        order = parse(words)
        if order is None:
            print(HELP, end="")
            sys.exit(0)
        environment = prepare(order)
    except UsageError as error:
        print(f"anydevice: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    os.execve(order.python[0], [*order.python, *order.program], environment)


def parse(words: list[str]) -> Order | None:
    """The order that the words after `anydevice run` give; None is a call for help."""
    order = Order()
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "-m", "-c"):
        option, equals, value = rest.pop(0).partition("=")
        if option == "--":
            break
        if option in ("--help", "-h"):
            return None
        if option not in OPTIONS:
            raise unknown_option("run", option, OPTIONS)
        if not equals and not rest:
            raise UsageError(f"expected a value after {option}, got none.")
        setattr(order, option.removeprefix("--"), value if equals else rest.pop(0))
    if rest and INTERPRETER.fullmatch(Path(rest[0]).name):
        order.python, order.program = _interpreter(rest)
    else:
        order.program = program_words(rest)
    return order


def unknown_option(command: str, option: str, known: Sequence[str]) -> UsageError:
    """What to say of an option that a command does not have."""
    near = difflib.get_close_matches(option, known, 1)
    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}."
    return UsageError(
        f"expected an option of anydevice {command} or a program, got {option}: {hint} "
        "A program's own options come after its name."
    )


def prepare(order: Order) -> dict[str, str]:
    """The environment that gives a Python its virtual GPUs; wrong use comes up here."""
    from anydevice.virtual.machine import machine
    from anydevice.virtual.process import environment

    gpus = int(order.gpus) if order.gpus.isascii() and order.gpus.isdecimal() else order.gpus
    wanted = machine(gpus, order.gpu, memory=order.memory)  # type: ignore[arg-type]
    changed = {
        **os.environ,
        **environment.for_torchrun(order.program),
        **environment.changes(wanted, trace=_trace_file(order.trace)),
        environment.MAIN: str(os.getpid()),
        environment.REPORTS: _folder_for_reports(),
    }
    return {name: value for name, value in changed.items() if value is not None}


def _interpreter(words: list[str]) -> tuple[list[str], list[str]]:
    """A Python by its name, with its own options; and its program, if it has one."""
    found = _command(words[0])
    if found is None:
        raise UsageError(f"expected a program, got {words[0]}, which does not exist.")
    options = _options_of_python(words[1:])
    program = words[1 + len(options) :]
    if program and _is_of_this_environment(found):  # else its modules are not to be found here
        program = program_words(program)
    return [found, *options], program


def _options_of_python(words: list[str]) -> list[str]:
    end = 0
    while end < len(words) and words[end].startswith("-") and words[end] not in ("-", "-m", "-c"):
        if (
            re.fullmatch(r"-[a-zA-Z]*[IES][a-zA-Z]*", words[end])
            and words[end][:2] not in WITH_VALUE
        ):
            raise UsageError(
                f"expected a Python that reads its environment, got {words[end]}, with which it "
                "ignores what tells it of virtual GPUs: leave that out."
            )
        end += 2 if words[end] in WITH_VALUE else 1
    return words[:end]


def program_words(words: list[str]) -> list[str]:
    """The program and its own words, as Python takes them; refused if there is no such program."""
    if not words or words in (["-m"], ["-c"]):
        raise UsageError("expected a program, such as train.py or -m package.train, got none.")
    if words[0] == "-m":
        _check_module(words[1])
    elif words[0] not in ("-", "-c"):
        return [_file(words[0]), *words[1:]]
    return words


def _file(name: str) -> str:
    """The program's file: as given, or a command that is written in Python, such as torchrun."""
    path = Path(name)
    if path.is_dir() and not (path / "__main__.py").exists():
        raise UsageError(f"expected a program, got {name}, which is a directory.")
    found = name if path.exists() else _command(name)
    if found is None:
        raise UsageError(f"expected a program, got {name}, which does not exist{_near(path)}")
    if path.is_file() or found != name:
        _refuse_other_languages(name, found)
    return found


def _command(name: str) -> str | None:
    """Where a command is: that of this Python's environment before others on PATH."""
    beside = shutil.which(name, path=str(Path(sys.executable).parent))
    return beside or shutil.which(name)


def _is_of_this_environment(command: str) -> bool:
    return Path(command).parent.resolve() == Path(sys.executable).parent.resolve()


def _refuse_other_languages(name: str, file: str) -> None:
    with open(file, "rb") as opened:
        start = opened.read(300)  # pip's scripts with a long path name Python in the second line
    if start.startswith(b"\x7fELF") or (start.startswith(b"#!") and b"python" not in start):
        raise UsageError(
            f"expected a Python program, got {name}, which is none: where it starts Python, "
            "write `anydevice run` before that."
        )


def _near(path: Path) -> str:
    folder = path.parent
    names = [entry.name for entry in folder.glob("*.py")] if folder.is_dir() else []
    near = difflib.get_close_matches(path.name, names, 1)
    return f": did you mean {folder / near[0]}?" if near else "."


def _check_module(name: str) -> None:
    """Refuses a module that is not there; packages are imported only if they are not found else."""
    sys.path.insert(0, os.getcwd())  # as Python has it for -m
    try:
        found = _is_found(name) or find_spec(name) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        raise UsageError(f"expected a module to run, got {name}, which does not exist.")


def _is_found(name: str) -> bool:
    path: list[str] | None = None
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:end]), path)
        if spec is None:
            return False
        path = list(spec.submodule_search_locations or ())
    return True


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
    """Of programs that were killed, a day later: others may still tell theirs."""
    for folder in parent.glob("anydevice-run-[0-9]*"):
        with suppress(OSError):
            old = time.time() - folder.stat().st_mtime > A_DAY
            if old and not lives(folder.name.split("-")[2]):
                shutil.rmtree(folder)
