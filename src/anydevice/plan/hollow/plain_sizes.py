"""Questions about sizes that are plain numbers, without the mathematics of symbolic ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

# Note [Plain sizes]
# PyTorch's shapes of ops that are written in Python ask `guard_or_false(size == 1)` and the like,
# of a module that imports sympy, and whether a number is an expression of sympy's: a second, in
# every program that normalises a layer. Only a compiler has symbolic sizes. So until something else
# is wanted of these modules, small ones take their places, which answer for plain numbers, and
# have the modules answer for all others.

SYMPY, SYMBOLIC = "sympy", "torch.fx.experimental.symbolic_shapes"
FUNCTIONS, UNUSED = "torch.utils._sympy.functions", ("Basic", "Max")
ASK = ("torch._prims_common", "torch._refs", "torch._decomp", "torch._meta_registrations")


class NoExpression:
    """Nothing is one of these."""


class StandIn(ModuleType):
    """Stands for a module: what this one lacks is taken from that, which is then imported."""

    def __getattr__(self, name: str) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        scans = caller.partition(".")[0] in sys.stdlib_module_names  # as inspect does, all modules
        if name == "__path__":
            if self.__name__ != SYMPY:  # no package
                raise AttributeError(name)
        elif name.startswith("__") and scans:
            raise AttributeError(name)
        if caller.startswith(ASK):
            if name in UNUSED:
                return NoExpression
            if self.__name__ == SYMBOLIC and name.islower():
                return _answering(name)  # a function, which need not be called
        return getattr(_module(self.__name__), name)


def _module(name: str) -> ModuleType:
    _remove(name)
    return import_module(name)


def _remove(name: str) -> None:
    if isinstance(sys.modules.get(name), StandIn):
        del sys.modules[name]


def _is_truth(*args: Any) -> bool:
    return len(args) == 1 and type(args[0]) is bool


def _is_number(*args: Any) -> bool:
    return len(args) == 1 and type(args[0]) is int


def _are_truths(*args: Any) -> bool:
    return bool(args) and all(type(arg) is bool for arg in args)


def _are_numbers(*args: Any) -> bool:
    if len(args) == 2 and all(isinstance(arg, tuple | list) for arg in args):
        return all(type(each) is int for arg in args for each in arg)
    return len(args) == 2 and all(type(arg) is int for arg in args)


def _never(*args: Any) -> bool:
    return False


def _same(x: Any) -> Any:
    return x


def _no(x: Any) -> bool:
    return False


def _equal(x: Any, y: Any) -> bool:
    return list(x) == list(y) if isinstance(x, tuple | list) else bool(x == y)


def _all(*truths: bool) -> bool:
    return all(truths)


def _any(*truths: bool) -> bool:
    return any(truths)


Answer = Callable[..., Any]
ANSWERS: dict[str, tuple[Answer, Answer]] = {  # what is answered, and for which arguments
    "guard_or_false": (_same, _is_truth),
    "guard_or_true": (_same, _is_truth),
    "statically_known_true": (_same, _is_truth),
    "guard_int": (_same, _is_number),
    "is_nested_int": (_no, _is_number),
    "sym_eq": (_equal, _are_numbers),
    "sym_and": (_all, _are_truths),
    "sym_or": (_any, _are_truths),
}


def _answering(name: str) -> Answer:
    plain, known = ANSWERS.get(name, (_same, _never))

    def answer(*args: Any, **kwargs: Any) -> Any:
        if not kwargs and known(*args):
            return plain(*args)
        return getattr(_module(SYMBOLIC), name)(*args, **kwargs)

    answer.__name__ = name
    return answer


@contextmanager
def plain_sizes() -> Iterator[Callable[[], None]]:
    """Inside the block, the stand-ins are in place of what is not loaded; gives their end."""
    package, _, child = SYMBOLIC.rpartition(".")
    parent = import_module(package)

    def end() -> None:
        if isinstance(getattr(parent, child, None), StandIn):
            delattr(parent, child)
        _remove(SYMBOLIC)
        for name in (SYMPY, FUNCTIONS):
            _remove(name)

    if not {SYMPY, SYMBOLIC, FUNCTIONS} & sys.modules.keys():
        symbolic = _stand_in(SYMBOLIC)
        for name in ANSWERS:
            setattr(symbolic, name, _answering(name))
        setattr(parent, child, symbolic)
        for name in (SYMPY, FUNCTIONS):
            _stand_in(name)
    try:
        yield end
    finally:
        end()


def _stand_in(name: str) -> StandIn:
    made = StandIn(name)
    made.__spec__ = find_spec(name)
    sys.modules[name] = made
    return made
