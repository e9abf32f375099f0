"""A shorter program that fails in the same way; each is tried in a new process."""

import re
from collections.abc import Callable, Iterator

from tests.conformance.random_programs.programs import Program, Step

Tried = Callable[[Program], str | None]  # how a program fails, or None
TRIES = 400


def kind_of(failure: str) -> str:
    """What is the same of a failure in a shorter program: its words, not its numbers."""
    return re.sub(r"\W*(v\d+|-?\d[\w.+-]*|nan|inf|True|False)\W*", " # ", failure.split("\n")[0])


def shrunk(program: Program, failure: str, tried: Tried) -> tuple[Program, str]:
    """The shortest program found, and how it fails."""
    left, again = TRIES, True
    while again and left:
        again = False
        for shorter in simpler(program):
            left -= 1
            if not left:
                break
            found = tried(shorter)
            if found and kind_of(found) == kind_of(failure):
                program, failure, again = shorter, found, True
                break
    return program, failure


def simpler(program: Program) -> Iterator[Program]:
    """Without some steps, half of them first; then with fewer choices."""
    size = len(program) // 2
    while size:
        for begin in range(len(program) - size, -1, -size):
            yield program[:begin] + program[begin + size :]
        size //= 2
    for i, step in enumerate(program):
        for j, byte in enumerate(step.data):
            if byte:
                zeroed = step.data[:j] + b"\0" + step.data[j + 1 :]
                yield (*program[:i], Step(step.kind, zeroed), *program[i + 1 :])
