"""Virtual GPUs in place before torch's Python code loads, so that it finds a CUDA build.

Note [Two halves of a start]

`import torch` reads what torch._C offers while it runs: torch/cuda/__init__.py makes dummy classes
for names that are missing there, and torch/distributed decides whether NCCL exists. A program must
find a CUDA build from its first line, so the GPUs cannot wait until torch is imported; and they
cannot come before it, since the native library links to libtorch and registers kernels with it.

So a finder on sys.meta_path wraps the loaders of two modules. When torch._C is loaded, `begin`
loads the native library, registers its kernels and puts the names of a CUDA build into torch._C.
When torch is whole, `finish` replaces the Python functions of torch.cuda and its neighbours that
would ask a driver. In a process that has imported torch already, `enable` does both in a row.
"""

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

from anydevice.virtual.loading import Then, found_by_others
from anydevice.virtual.machine import Machine, begin, finish, put_in_place


class Finder:
    """Finds torch and torch._C as other finders do, and acts when they are loaded."""

    def __init__(self, wanted: Machine, when_whole: Callable[[], None] = lambda: None) -> None:
        self.wanted = wanted
        self.when_whole = when_whole

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of either module, its loader wrapped."""
        act = {"torch._C": self._loaded_c, "torch": self._loaded_torch}.get(name)
        spec = found_by_others(self, name, path, target) if act else None
        if spec and act:
            spec.loader = cast(Any, Then(spec.loader, act))
        return spec

    def _loaded_c(self, module: ModuleType) -> None:
        sys.modules["torch"]._C = module  # type: ignore[attr-defined]  # import would do so next
        begin(self.wanted)

    def _loaded_torch(self, module: ModuleType) -> None:
        sys.meta_path.remove(self)
        finish(self.wanted)
        self.when_whole()


def import_torch(wanted: Machine) -> None:
    """Imports torch with the GPUs in place; where it is imported already, puts them in place."""
    if "torch" in sys.modules:
        return put_in_place(wanted)
    finder: Any = Finder(wanted)
    inherited = [other for other in sys.meta_path if hasattr(other, "gives_virtual_gpus")]
    sys.meta_path[:] = [finder, *(other for other in sys.meta_path if other not in inherited)]
    try:
        import torch  # noqa: F401
    finally:
        if finder in sys.meta_path:  # the import failed
            sys.meta_path.remove(finder)
