"""Runs as Python starts, in a program of `anydevice run` and in the processes that it starts.

Python finds it on PYTHONPATH, or by `anydevice.pth`. It waits for `import torch`, and costs next to
nothing until then.
"""

from __future__ import annotations

import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGES = os.path.abspath(os.path.join(_HERE, *[os.pardir] * 4))  # where anydevice is


class _BeforeTorch:
    """Gives way to a finder with the GPUs when torch is imported."""

    gives_virtual_gpus = True

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        running = _running() if name == "torch" else None
        if running is None:
            return None
        sys.meta_path[sys.meta_path.index(self)] = finder = running.finder()
        spec: ModuleSpec | None = finder.find_spec(name, path, target)
        return spec


def _running() -> ModuleType | None:
    """The program's side, from where `anydevice run` is if this Python has no anydevice."""
    sys.path.append(_PACKAGES)
    try:
        from anydevice.virtual.process import program as running
    except Exception as error:  # a Python that is too old, for one
        sys.stderr.write(f"anydevice: no virtual GPUs in {sys.executable}: {error}\n")
        return None
    finally:
        sys.path.pop()
    return running


def _at_end(program: int, reports: str) -> None:
    """In the program's own process: here, since children may have used torch where it did not."""
    if os.getpid() != program:
        return  # forked from it
    running = _running() if "torch" in sys.modules or os.listdir(reports) else None
    if running is not None:
        running.end()
    try:  # no import here: some reset what Python knows of Ctrl-C, and its exit code with it
        for report in os.listdir(reports):
            os.remove(os.path.join(reports, report))
        os.rmdir(reports)
    except OSError:  # a child leaves its report just now
        pass


def _make_way() -> None:
    """Lets a sitecustomize that this one hides run, and leaves sys.path as it would be without."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    spec = PathFinder.find_spec("sitecustomize")
    if spec and spec.loader:
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


# The names of the variables are those of anydevice.virtual.process.environment, not imported here:
# it is slow, and this Python may have no anydevice.
if "ANYDEVICE_VIRTUAL" in os.environ:
    sys.meta_path.insert(0, _BeforeTorch())
    if os.environ.get("ANYDEVICE_MAIN") == str(os.getpid()):
        atexit.register(_at_end, os.getpid(), os.environ["ANYDEVICE_REPORTS"])
_make_way()
