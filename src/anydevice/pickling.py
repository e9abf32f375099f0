"""A function as bytes, wherever it is defined: in a notebook, in another function, as a lambda."""

import io
import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def by_value(thing: Any) -> bytes:
    """Pickles a function with all that it uses, for `pickle.loads` in another process.

    Raises:
        ImportError: cloudpickle is not installed.
        Exception: Something that it uses cannot be pickled.

    Example:
        >>> import pickle
        >>> pickle.loads(by_value(lambda x: 2 * x))(3)
        6
    """
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, given: Any) -> Any:
            return _by_name(given) or super().reducer_override(given)

    file = io.BytesIO()
    Pickler(file).dump(thing)
    return file.getvalue()


def _by_name(given: Any) -> tuple[Any, ...] | None:
    """Where to import what cloudpickle would try to copy, such as torch.backends.cudnn.

    PyTorch has modules of special types, and classes that were renamed.
    """
    if isinstance(given, ModuleType):
        known = type(given) is not ModuleType and sys.modules.get(given.__name__) is given
        return (import_module, (given.__name__,)) if known else None
    if isinstance(given, type) and given.__qualname__ != given.__name__:
        module = sys.modules.get(given.__module__)
        known = given.__module__ != "__main__" and getattr(module, given.__name__, None) is given
        return (getattr, (module, given.__name__)) if known else None
    return None
