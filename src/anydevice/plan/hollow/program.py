"""A program on disk that can be called: it runs as `__main__`, with its arguments."""

from __future__ import annotations

import os
import runpy
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from anydevice.errors import UsageError


@dataclass(frozen=True)
class Program:
    """What follows `python`: a file, or -m and a module, and the program's own arguments."""

    arguments: tuple[str, ...]
    batch_arg: str | None = None  # the program's option for its batch size

    @property
    def name(self) -> str:
        """`train.py`."""
        first, *others = self.arguments
        if first.endswith("accelerate"):  # which starts the program that follows
            first = next((word for word in others if word.endswith(".py")), first)
        return os.path.basename(others[0] if first == "-m" else first)

    def __call__(self) -> None:
        """Runs it in this process."""
        if self.arguments[0] == "-m":
            sys.argv = ["-m", *self.arguments[2:]]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(self.arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(self.arguments)
            sys.path.insert(0, str(Path(self.arguments[0]).resolve().parent))
            runpy.run_path(os.path.abspath(self.arguments[0]), run_name="__main__")

    @property
    def batch(self) -> int | None:
        """The batch size among the arguments: `--batch 8`, `--batch=8` or `batch=8`."""
        for argument, after in zip(self.arguments, (*self.arguments[1:], ""), strict=True):
            name, equals, value = argument.partition("=")
            if name == self.batch_arg:
                return _number(value if equals else after, name)
        return None

    def with_batch(self, batch: int) -> Program:
        """The same program with another batch size, in the same place or as its last argument."""
        arguments, option = list(self.arguments), str(self.batch_arg)
        for at, argument in enumerate(arguments):
            name, equals, _ = argument.partition("=")
            if name == option:
                where, text = (at, f"{name}={batch}") if equals else (at + 1, str(batch))
                arguments[where] = text
                return replace(self, arguments=tuple(arguments))
        added = [option, str(batch)] if option.startswith("-") else [f"{option}={batch}"]
        return replace(self, arguments=(*arguments, *added))


def _number(text: str, option: str) -> int:
    if text.isascii() and text.isdecimal() and int(text) > 0:
        return int(text)
    raise UsageError(f"expected a batch size after {option}, got {text!r}.")
