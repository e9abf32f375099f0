"""A program on disk as something to call: it runs as `__main__`, with its own words."""

from __future__ import annotations

import os
import runpy
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from anydevice.errors import UsageError


@dataclass(frozen=True)
class Program:
    """Python's arguments: a file, or -m and a module, and the program's own words."""

    words: tuple[str, ...]

    @property
    def name(self) -> str:
        """`train.py`."""
        return os.path.basename(self.words[1] if self.words[0] == "-m" else self.words[0])

    def __call__(self) -> None:
        """Runs it in this process."""
        if self.words[0] == "-m":
            sys.argv = ["-m", *self.words[2:]]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(self.words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(self.words)
            sys.path.insert(0, str(Path(self.words[0]).resolve().parent))
            runpy.run_path(os.path.abspath(self.words[0]), run_name="__main__")

    def batch(self, option: str) -> int | None:
        """What the words give for it: `--batch 8`, `--batch=8` or `batch=8`."""
        for word, after in zip(self.words, (*self.words[1:], ""), strict=True):
            name, equals, value = word.partition("=")
            if name == option:
                return _number(value if equals else after, option)
        return None

    def with_batch(self, option: str, batch: int) -> Program:
        """The same program with another batch size, in the same place or as its last words."""
        words = list(self.words)
        for at, word in enumerate(words):
            name, equals, _ = word.partition("=")
            if name == option:
                where, text = (at, f"{name}={batch}") if equals else (at + 1, str(batch))
                words[where] = text
                return replace(self, words=tuple(words))
        added = [option, str(batch)] if option.startswith("-") else [f"{option}={batch}"]
        return replace(self, words=(*words, *added))


def _number(text: str, option: str) -> int:
    if text.isascii() and text.isdecimal() and int(text) > 0:
        return int(text)
    raise UsageError(f"expected a batch size after {option}, got {text!r}.")
