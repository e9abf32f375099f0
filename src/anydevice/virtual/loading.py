"""Acts when a module is imported, by wrapping its loader."""

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast


class Then:
    """A loader that does as another does, and then acts; it leaves no trace in the module."""

    def __init__(self, loader: Any, act: Callable[[ModuleType], None]) -> None:
        self.loader = loader
        self.act = act

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the other."""
        module: ModuleType | None = self.loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """As the other, and then acts."""
        assert module.__spec__
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.act(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


class Refused:
    """A loader of a module that does not work here: importing it is an ImportError.

    Whether it is installed can still be asked, and code that can do without continues.
    """

    def __init__(self, reason: Callable[[], str]) -> None:
        self.reason = reason

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As usual."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """The error."""
        raise ImportError(self.reason(), name=module.__name__)


def found_by_others(
    finder: Any, name: str, path: Any, target: ModuleType | None
) -> ModuleSpec | None:
    """What the other finders find."""
    for other in sys.meta_path:
        if other is not finder and hasattr(other, "find_spec"):
            spec = other.find_spec(name, path, target)
            if spec:
                return spec
    return None


class Waiting:
    """A finder that calls what waits for a module, once it is loaded."""

    def __init__(self) -> None:
        self.acts: dict[str, Callable[[], None]] = {}
        self.before: dict[str, Callable[[], None]] = {}
        self.refused: dict[str, Callable[[], str]] = {}

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module that something waits for, its loader wrapped."""
        if prepare := self.before.get(name):
            prepare()
        if name not in self.acts and name not in self.refused:
            return None
        spec = found_by_others(self, name, path, target)
        if spec and spec.loader:
            reason = self.refused.get(name)
            loader = Refused(reason) if reason else Then(spec.loader, self._loaded)
            spec.loader = cast(Any, loader)
        return spec

    def _loaded(self, module: ModuleType) -> None:
        if act := self.acts.get(module.__name__):
            act()

    def prepare(self, name: str, act: Callable[[], None]) -> None:
        """Calls `act` before the module is loaded."""
        self._find()
        self.before[name] = act

    def refuse(self, name: str, reason: Callable[[], str]) -> None:
        """Importing the module, where it is installed, is an error; not if it is loaded already."""
        self._find()
        self.refused[name] = reason

    def _find(self) -> None:
        if self not in sys.meta_path:
            sys.meta_path.insert(0, cast(Any, self))

    def wait(self, name: str, act: Callable[[], None]) -> None:
        """Calls `act` when the module is loaded: now, if it is already."""
        if name in sys.modules:
            act()
            return
        self._find()
        self.acts[name] = act

    def forget(self) -> None:
        """Waits for nothing."""
        self.acts.clear()
        self.before.clear()
        self.refused.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(cast(Any, self))
