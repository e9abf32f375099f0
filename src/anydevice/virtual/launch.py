"""`anydevice run`: an unmodified program in a Python of its own, where torch finds virtual GPUs.

The command becomes that Python: the program has its terminal, signals, exit code and tracebacks.
"""

import difflib
import json
import os
import shutil
import sys
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from anydevice.errors import UsageError

HELP = """\
Usage: anydevice run [options] program.py [arguments]
       anydevice run [options] -m module [arguments]

Run a PyTorch program on GPUs that are not there. It sees them at `cuda`, as do the processes that
it starts; the CPU computes the numbers. What follows the program's name is the program's.

Options:
  --gpus N       how many GPUs, 1 to 16; 1 if not given
  --gpu KIND     which kind: `anydevice devices --known` lists them; h100 if not given
  --memory SIZE  a GPU's memory, such as 16GiB, if not the card's own
  --trace FILE   write transfers, synchronisations and allocations there, for ui.perfetto.dev
  --help         show this and exit
"""
OPTIONS = ("--gpus", "--gpu", "--memory", "--trace")
INHERIT = Path(__file__).parent / "inherit"


@dataclass
class Order:
    """What `anydevice run` was asked for."""

    gpus: str = "1"
    gpu: str = "h100"
    memory: str | None = None
    trace: str | None = None
    python: list[str] = field(default_factory=list)  # Python's own arguments: the program and its


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
    os.execve(sys.executable, [sys.executable, *order.python], environment)


def parse(words: list[str]) -> Order | None:
    """The order that the words after `anydevice run` give; None is a call for help."""
    order = Order()
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "-m", "-c"):
        option, equals, value = rest.pop(0).partition("=")
        if option in ("--help", "-h"):
            return None
        if option not in OPTIONS:
            near = difflib.get_close_matches(option, OPTIONS, 1) or OPTIONS
            raise UsageError(
                f"expected an option of anydevice run or a program, got {option}: did you mean "
                f"{' or '.join(near)}? A program's own options come after its name."
            )
        if not equals and not rest:
            raise UsageError(f"expected a value after {option}, got none.")
        setattr(order, option.removeprefix("--"), value if equals else rest.pop(0))
    order.python = program_words(rest)
    return order


def prepare(order: Order) -> dict[str, str]:
    """The environment that gives a Python its virtual GPUs; wrong use comes up here."""
    from anydevice.virtual import meeting
    from anydevice.virtual.machine import machine

    gpus = int(order.gpus) if order.gpus.isascii() and order.gpus.isdecimal() else order.gpus
    wanted = machine(gpus, order.gpu, memory=order.memory)  # type: ignore[arg-type]
    asked = {
        "gpus": wanted.gpus,
        "gpu": wanted.gpu.kind,
        "memory": wanted.gpu.memory,
        "trace": _trace_file(order.trace),
    }
    before = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        **meeting.environment(order.python),
        "PYTHONPATH": os.pathsep.join([str(INHERIT), *([before] if before else [])]),
        "ANYDEVICE_VIRTUAL": json.dumps(asked),
        "ANYDEVICE_MAIN": str(os.getpid()),
        "ANYDEVICE_REPORTS": _folder_for_reports(),
    }


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
    if path.exists():
        return name
    command = shutil.which(name)
    if command and _is_python(command):
        return command
    raise UsageError(f"expected a program, got {name}, which does not exist{_near(path)}")


def _is_python(command: str) -> bool:
    with open(command, "rb") as file:
        line = file.readline(200)
    return line.startswith(b"#!") and b"python" in line


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
    folder = os.path.join(parent, f"anydevice-run-{os.getpid()}-{os.urandom(4).hex()}")
    os.mkdir(folder, mode=0o700)
    return folder
