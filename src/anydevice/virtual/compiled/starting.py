"""What Inductor and Triton do once in each process, in less time."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

# Note [The first second of a compiler]
# Inductor parses the templates of all its kernels while it is imported, of which a program needs
# few: here each is parsed when it is used. Its objects stay, so that the garbage collector finds
# nothing while it is imported.
#
# The keys of both caches begin with a hash of all sources, and of Triton's library of 460 MB. Here
# sizes and times of the same files stand for what is in them.

GENERATING = ("_inductor", "_functorch", "_decomp", "_refs", "_prims", "fx")  # folders of torch
SELDOM = 50_000  # objects more before Python looks for garbage, instead of 700 (2,000 from 3.13 on)
SOURCES = (".py", ".so", ".jinja")


def keys(names: Any) -> Iterator[tuple[Any, str, Any]]:
    """The functions that make the keys of Inductor's and Triton's caches."""
    import torch

    home = Path(torch.__file__).parent
    folders = tuple(home / name for name in GENERATING)
    yield names.codes, "torch_key", lambda: _state(torch.__version__, folders).encode()
    if names.triton_compat.HAS_TRITON:
        yield names.triton_compat, "triton_key", triton_key


def triton_key() -> str:
    """In place of Triton's."""
    import triton

    return _state(triton.__version__, (Path(triton.__file__).parent,))


@cache
def _state(version: str, folders: tuple[Path, ...]) -> str:
    """A version, and the sizes and times of the sources in some folders."""
    digest = sha256(version.encode())
    for folder in folders:
        for parent, _, files in sorted(os.walk(folder)):
            for name in sorted(files):
                if name.endswith(SOURCES):
                    state = os.stat(os.path.join(parent, name))
                    digest.update(f"{parent}/{name} {state.st_size} {state.st_mtime_ns}".encode())
    return f"anydevice-{digest.hexdigest()}"


@contextmanager
def importing() -> Iterator[None]:
    """Inside the block Inductor is imported; where it has other names, as it does that itself."""
    template = getattr(import_module("torch._inductor.codegen.common"), "KernelTemplate", None)
    parse = getattr(template, "_template_from_string", None)
    collects = gc.isenabled()
    gc.disable()
    try:
        if parse is None:
            yield
        else:
            with patch.object(template, "_template_from_string", staticmethod(_later(parse))):
                yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """Inside the block the garbage collector runs less often: a compiler's objects stay."""
    before = gc.get_threshold()
    if before[0]:  # not 0, which is never
        gc.set_threshold(max(before[0], SELDOM), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _later(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda source: Unparsed(parse, source)


class Unparsed:
    """A template, parsed when it is used."""

    def __init__(self, parse: Callable[[str], Any], source: str) -> None:
        self._parse, self._source = parse, source

    @cached_property
    def _parsed(self) -> Any:
        return self._parse(self._source)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parsed, name)
