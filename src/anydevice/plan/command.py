"""`anydevice plan`: an unmodified program, planned for GPUs that are not there."""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass, field
from typing import NoReturn

from anydevice.errors import UsageError
from anydevice.virtual.launch import program_words

HELP = """\
Usage: anydevice plan [options] program.py [arguments]
       anydevice plan [options] -m module [arguments]

Will it fit, which batch, how long is a step: the program's first steps are run on GPUs that are not
there, without values. What follows the program's name is the program's.

Options:
  --gpu KIND        for this GPU, and for each one that is named so; h100 if none is.
                    `anydevice devices --known` lists them
  --steps N         how many steps of its optimizer; 3 if not given
  --batch-arg NAME  the program's option that is its batch size, such as --batch-size or batch=:
                    the largest batch that fits is found
  --assume-zeros    where the program branches on what it reads from the GPU, go the way for zero
  --json            print JSON for a program
  --help            show this and exit

Exit codes: 0 it fits each of these GPUs, 1 it does not, 2 it could not be planned.
"""
VALUES = ("--gpu", "--steps", "--batch-arg")
FLAGS = ("--json", "--assume-zeros")


@dataclass
class Order:
    """What `anydevice plan` was asked for."""

    gpus: list[str] = field(default_factory=list)
    steps: int = 3
    batch_arg: str | None = None
    assume_zeros: bool = False
    json: bool = False
    words: list[str] = field(default_factory=list)


def main(words: list[str]) -> NoReturn:
    """Plan it, print the answer, and end with 0 if it fits each card, else with 1."""
    order = parse(words)
    if order is None:
        print(HELP, end="")
        sys.exit(0)
    from anydevice.plan.failures import CannotPlanError
    from anydevice.plan.planning import plan
    from anydevice.plan.program import Program
    from anydevice.tables import show

    try:
        answer = plan(
            Program(tuple(order.words)),
            order.gpus or ["h100"],
            steps=order.steps,
            batch_arg=order.batch_arg,
            assume_zeros=order.assume_zeros,
        )
    except CannotPlanError as error:
        sys.stderr.write(error.details)
        raise
    if order.json:
        print(answer.to_json())
    else:
        show(answer)
    sys.exit(0 if answer.fits else 1)


def parse(words: list[str]) -> Order | None:
    """The order that the words after `anydevice plan` give; None is a call for help."""
    order, rest = Order(), list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        option, equals, value = rest.pop(0).partition("=")
        if option in ("--help", "-h"):
            return None
        if option in FLAGS:
            setattr(order, option.removeprefix("--").replace("-", "_"), True)
            continue
        if option not in VALUES:
            near = difflib.get_close_matches(option, (*VALUES, *FLAGS), 1) or (*VALUES, *FLAGS)
            raise UsageError(
                f"expected an option of anydevice plan or a program, got {option}: did you mean "
                f"{' or '.join(near)}? A program's own options come after its name."
            )
        if not equals and not rest:
            raise UsageError(f"expected a value after {option}, got none.")
        _set(order, option, value if equals else rest.pop(0))
    order.words = program_words(rest)
    return order


def _set(order: Order, option: str, value: str) -> None:
    if option == "--gpu":
        order.gpus.append(value)
    elif option == "--batch-arg":
        order.batch_arg = value.removesuffix("=")
    elif value.isascii() and value.isdecimal() and int(value) > 0:
        order.steps = int(value)
    else:
        raise UsageError(f"expected a number of steps after --steps, got {value!r}.")
