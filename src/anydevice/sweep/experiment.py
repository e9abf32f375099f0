"""Sends an experiment to another process: by its name, or as a whole where it has none.

A program's own functions are found by running the program up to its call of Sweep.run. Functions
in a notebook, and lambdas, need the package cloudpickle.
"""

import functools
import inspect
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from anydevice.errors import UsageError
from anydevice.pickling import by_value

loading_program = False  # whether this process runs a program only to find its functions


class ReachedTheSweep(BaseException):
    """The program has come to its call of Sweep.run: everything above it is defined."""


@dataclass(frozen=True)
class Shipped:
    """An experiment as bytes, and the program to run before they are read, if it needs one."""

    data: bytes
    program: str | None = None
    package: str | None = None

    def unpacked(self) -> Callable[..., Any]:
        """The experiment, in another process."""
        if self.program:
            _load_program(self.program, self.package)
        experiment: Callable[..., Any] = pickle.loads(self.data)
        return experiment


def shipped(experiment: Callable[..., Any]) -> Shipped:
    """The experiment, ready to be sent; a UsageError if it cannot be."""
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    path = path if path and os.path.isfile(path) else None  # "<stdin>", for example, is no file
    by_name = path or getattr(inspect.unwrap(_plain(experiment)), "__module__", "") != "__main__"
    if by_name:
        try:
            data = pickle.dumps(experiment)
            if b"__main__" not in data or not path:
                return Shipped(data)
            package = getattr(getattr(main, "__spec__", None), "parent", None)
            return Shipped(data, os.path.abspath(path), package)
        except (pickle.PicklingError, AttributeError, TypeError):
            pass
    try:
        return Shipped(by_value(experiment))
    except ImportError:
        raise UsageError(
            "expected an experiment that another process can import, got "
            f"{name_of(experiment) or experiment!r}: make it a function at the top level of a .py "
            "file (in a notebook: %%writefile it and import it), or pip install "
            "'anydevice[sweep]', which brings cloudpickle."
        ) from None


def name_of(experiment: Callable[..., Any] | None) -> str | None:
    """The experiment's name, such as train:experiment, by which a folder knows its sweep."""
    plain = _plain(experiment)
    module, name = getattr(plain, "__module__", None), getattr(plain, "__qualname__", None)
    if not module or not name:
        return None
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        module = spec.name if spec else Path(getattr(main, "__file__", module)).stem
    return f"{module}:{name}"


def code_of(experiment: Callable[..., Any] | None) -> Path:
    """The folder of the experiment's code."""
    try:
        return Path(inspect.getfile(_plain(experiment))).absolute().parent
    except (TypeError, OSError):
        return Path.cwd()


def _plain(experiment: Any) -> Any:
    while isinstance(experiment, functools.partial):
        experiment = experiment.func
    return experiment


def _load_program(path: str, package: str | None) -> None:
    """Runs a program as a module of another name, so that `if __name__ == "__main__"` is false."""
    global loading_program
    spec = spec_from_file_location("__mp_main__", path)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    module.__package__ = package
    module.__spec__ = None  # as multiprocessing has it: its processes then look for the file
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    loading_program = True
    try:
        spec.loader.exec_module(module)
    except ReachedTheSweep:
        pass
    finally:
        loading_program = False
