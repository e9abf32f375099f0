"""Options of a command before a program and its own: `run --gpus 2 train.py --epochs 3`."""

import itertools
import os
import shutil
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from anydevice.errors import UsageError, did_you_mean

PROGRAMS = ("-", "-m", "-c")  # no options: a program from the input, a module, a line of Python


class HelpWanted(Exception):  # noqa: N818  (a wish, not an error)
    """The options include --help."""


def options_before_program(
    command: str, arguments: Sequence[str], *, values: Sequence[str], flags: Sequence[str] = ()
) -> tuple[list[tuple[str, str]], list[str]]:
    """A command's options with their values, in order, and what comes after them.

    Args:
        command: The name of the command, for errors.
        arguments: What came after the command's name.
        values: The options that take a value, as `--gpus 2` or `--gpus=2`.
        flags: The options that take none; their value is "".

    Raises:
        HelpWanted: For --help or -h.
        UsageError: For an unknown option, or one without its value.
    """
    options, rest = [], list(arguments)
    while rest and rest[0].startswith("-") and rest[0] not in PROGRAMS:
        option, equals, value = rest.pop(0).partition("=")
        if option == "--":
            break
        if option in ("--help", "-h"):
            raise HelpWanted
        if option in flags:
            options.append((option, ""))
        elif option not in values:
            raise _unknown(command, option, (*values, *flags))
        elif not equals and not rest:
            raise UsageError(f"expected a value after {option}, got none.")
        else:
            options.append((option, value if equals else rest.pop(0)))
    return options, rest


def options_after_program(
    arguments: Sequence[str], *, values: Sequence[str], flags: Sequence[str] = ()
) -> tuple[list[tuple[str, str]], list[str]]:
    """A command's options that stand after the program, `train.py --gpu t4`, and what is left.

    An option that the program's file names is the program's, and so is all after `--`.
    """
    if not arguments or not arguments[0].endswith(".py") or not Path(arguments[0]).is_file():
        return [], list(arguments)
    text = Path(arguments[0]).read_text("utf-8", errors="replace")
    options: list[tuple[str, str]] = []
    left, rest = [arguments[0]], list(arguments[1:])
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if option == "--":
            return options, [*left, *rest]
        if option in text or option not in (*values, *flags):
            left.append(word)
        elif option in flags:
            options.append((option, ""))
        elif not equals and not rest:
            raise UsageError(f"expected a value after {option}, got none.")
        else:
            options.append((option, value if equals else rest.pop(0)))
    return options, left


def misplaced_option(command: str, program: Sequence[str], known: Sequence[str]) -> str:
    """A sentence about an option of ours after a program that does not name it; "" if none is."""
    if not program or not program[0].endswith(".py") or not Path(program[0]).is_file():
        return ""
    text = Path(program[0]).read_text("utf-8", errors="replace")
    before_dashes = itertools.takewhile(lambda word: word != "--", program[1:])
    for option in (word.partition("=")[0] for word in before_dashes):
        if option in known and option not in text:
            return (
                f"{option} comes after {program[0]}, so {program[0]} gets it. "
                f"Options of anydevice {command} come before the program."
            )
    return ""


def _unknown(command: str, option: str, known: Sequence[str]) -> UsageError:
    hint = did_you_mean(option, known, f"it has {', '.join(known)}.")
    return UsageError(
        f"expected an option of anydevice {command} or a program, got {option}: {hint} "
        "A program's own options come after its name."
    )


def program_arguments(arguments: list[str]) -> list[str]:
    """The program and its arguments, as Python takes them, if there is such a program."""
    if not arguments or arguments in (["-m"], ["-c"]):
        raise UsageError("expected a program, such as train.py or -m package.train, got none.")
    if arguments[0] == "-m":
        _check_module(arguments[1])
    elif arguments[0] not in ("-", "-c"):
        return [_file(arguments[0]), *arguments[1:]]
    return arguments


def _file(name: str) -> str:
    """The program's file: as given, or a command that is written in Python, such as torchrun."""
    path = Path(name)
    if path.is_dir() and not (path / "__main__.py").exists():
        raise UsageError(f"expected a program, got {name}, which is a directory.")
    found = name if path.exists() else command_path(name)
    if found is None:
        raise UsageError(f"expected a program, got {name}, which does not exist{_near(path)}")
    if path.is_file() or found != name:
        _refuse_other_languages(name, found)
    return found


def command_path(name: str) -> str | None:
    """Where a command is: that of this Python's environment before others on PATH."""
    of_this_environment = shutil.which(name, path=str(Path(sys.executable).parent))
    return of_this_environment or shutil.which(name)


def _refuse_other_languages(name: str, file: str) -> None:
    with open(file, "rb") as opened:
        start = opened.read(300)  # pip's scripts with a long path name Python in the second line
    if start.startswith(b"\x7fELF") or (start.startswith(b"#!") and b"python" not in start):
        raise UsageError(
            f"expected a Python program, got {name}, which is not one: where it starts Python, "
            "write `anydevice run` before that."
        )


def _near(path: Path) -> str:
    folder = path.parent
    names = [entry.name for entry in folder.glob("*.py")] if folder.is_dir() else []
    hint = did_you_mean(path.name, names, "")
    return f": {hint}" if hint else "."


def _check_module(name: str) -> None:
    """Refuses a module that is not there; imports its packages only if nothing else finds it."""
    sys.path.insert(0, os.getcwd())  # as Python has it for -m
    try:
        found = _is_found(name) or find_spec(name) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        raise UsageError(f"expected a module to run, got {name}, which does not exist.")


def _is_found(name: str) -> bool:
    """Whether a file on sys.path has the module, without importing anything."""
    path: list[str] | None = None
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:end]), path)
        if spec is None:
            return False
        path = list(spec.submodule_search_locations or ())
    return True
