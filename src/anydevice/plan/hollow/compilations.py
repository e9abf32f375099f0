"""What compilers keep from one plan to the next: the sandbox would drop their caches.

Inductor and Triton keep what they generated in folders, by keys that cover all that it depends on.
A plan has such folders in anydevice's cache. What a run adds to them comes to the parent, which
writes it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from time import time
from typing import Any

from anydevice.errors import UsageError
from anydevice.files import write_whole
from anydevice.virtual.cache import MODE, folder

FOLDERS = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
KEPT = ("inductor/aotautograd/", "inductor/fxgraph/", "triton/")  # all else is made from these
CACHING = {"torch._inductor.compile_fx", "triton.compiler.compiler"}  # modules that write there
DEFAULT = os.path.join(gettempdir(), "torchinductor_")  # where torch puts it as it is imported
MOST = 256 << 20  # bytes of one run
TICK = 0.02  # seconds that the clock of files may be late


@dataclass
class Files:
    """What a run added, by the path in the caches."""

    home: Path
    data: dict[str, bytes]

    def keep(self) -> None:
        """In the parent: writes them."""
        for name, data in self.data.items():
            path = (self.home / name).resolve()
            if path.is_relative_to(self.home.resolve()):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, data, mode=MODE)


def prepare() -> Path | None:
    """The folder of the caches, made by the parent; None if there can be none."""
    with suppress(UsageError, OSError):
        return folder("compiled")
    return None


class Added:
    """In the child: what a run adds."""

    def __init__(self, home: Path | None) -> None:
        self.home, self.since = home, time() - TICK
        if home:
            for variable, name in FOLDERS.items():
                if os.environ.get(variable, DEFAULT).startswith(DEFAULT):
                    os.environ[variable] = str(home / name)

    def tell(self, connection: Any) -> None:
        """Sends the new files to the parent."""
        if self.home and not CACHING.isdisjoint(sys.modules) and (data := self.files()):
            connection.send(Files(self.home, data))

    def files(self) -> dict[str, bytes]:
        """The new files, by their path in the caches."""
        assert self.home
        found = {}
        for path in self._new(str(self.home)):
            name = os.path.relpath(path, self.home)
            if name.startswith(KEPT):
                with open(path, "rb") as file:
                    found[name] = file.read()
        return found if sum(map(len, found.values())) <= MOST else {}

    def _new(self, home: str) -> Iterator[str]:
        for parent, _, names in os.walk(home):
            for name in names:
                path = os.path.join(parent, name)
                if os.stat(path).st_mtime >= self.since:
                    yield path
