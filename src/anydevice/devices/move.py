"""Moving anything to a device: tensors, modules, optimizers, and what contains them."""

import copy
import dataclasses
import inspect
from collections import UserDict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

import torch

from anydevice.devices.choose import DeviceLike, pick
from anydevice.errors import UsageError

T = TypeVar("T")

_ATOMS = (str, bytes, bytearray, int, float, complex, bool, type(None), type, torch.dtype)


def move(obj: T, device: DeviceLike, *, non_blocking: bool = False) -> T:
    """Move anything to a device: tensors, modules, optimizers, and any nesting of containers.

    Containers are never changed: one that holds something that moves is copied, others are
    returned as they are. What was shared stays shared. Modules and the state of optimizers move in
    place, as PyTorch moves them.

    Args:
        obj: Tensors, modules, optimizers, or containers of them: lists, tuples, named tuples,
            dicts, sets, dataclasses, and everything that has a method `to`.
        device: A device as `pick` takes it.
        non_blocking: As in `Tensor.to`. A copy to the CPU that does not block must not be read
            before `torch.accelerator.synchronize()`.

    Returns:
        The same structure, on the device.

    Raises:
        DeviceNotFound: There is no such device.
        UsageError: A container contains itself.

    >>> x, y = move((torch.zeros(2), {"labels": torch.ones(2)}), "cpu")
    """
    # A torch.device is checked only if the move fails, since this runs in every step.
    unchecked = isinstance(device, torch.device) and device.type != "cpu"
    target = torch.device(device) if unchecked else pick(device)
    try:
        return cast(T, _Mover(target, non_blocking).move(obj))
    except (AssertionError, RuntimeError):
        pick(target)
        raise


class _Mover:
    """One call of `move`: remembers what it has met, so that sharing is kept."""

    def __init__(self, device: torch.device, non_blocking: bool) -> None:
        self.device = device
        self.non_blocking = non_blocking
        self.met: dict[int, tuple[object, object]] = {}  # holds the originals: ids stay unique

    def move(self, obj: Any) -> Any:
        if isinstance(obj, _ATOMS):
            return obj
        if id(obj) in self.met:
            moved = self.met[id(obj)][1]
            if moved is _UNFINISHED:
                raise UsageError(
                    f"expected a nesting without cycles, got a {_kind(obj)} that contains itself: "
                    "move its parts one by one."
                )
            return moved
        self.met[id(obj)] = obj, _UNFINISHED
        moved = self._moved(obj)
        self.met[id(obj)] = obj, moved
        return moved

    def _moved(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            return obj.to(self.device, non_blocking=self.non_blocking)
        if isinstance(obj, torch.optim.Optimizer):
            return self._optimizer(obj)
        if isinstance(obj, torch.UntypedStorage):
            return obj.to(device=self.device)
        if isinstance(obj, Mapping):
            return self._mapping(obj)
        if _moves_itself(obj):
            return self._by_its_own(obj)
        if isinstance(obj, tuple | list | set | frozenset | deque):
            return self._items(obj)
        if dataclasses.is_dataclass(obj):
            return self._dataclass(obj)
        return obj

    def _by_its_own(self, obj: Any) -> Any:
        """By the object's own `.to`, which need not know `non_blocking`."""
        knows = self.non_blocking and _accepts(obj.to, "non_blocking")
        moved = obj.to(self.device, non_blocking=True) if knows else obj.to(self.device)
        return obj if moved is None else moved  # one that moved in place and returns nothing

    def _items(self, obj: Any) -> Any:
        items = [self.move(item) for item in obj]
        if _same(items, obj):
            return obj
        if isinstance(obj, list | deque):
            fresh = copy.copy(obj)  # keeps a subclass's attributes and a deque's length limit
            fresh.clear()
            fresh.extend(items)
            return fresh
        if isinstance(obj, tuple) and hasattr(obj, "_make"):
            return obj._make(items)
        return type(obj)(items)

    def _mapping(self, obj: Mapping[Any, Any]) -> Any:
        before = dict(obj.items())
        after = {key: self.move(value) for key, value in before.items()}
        if _same(after.values(), before.values()):
            return obj
        if _moves_itself(obj):  # knows better, but may change itself: move a copy
            return self._by_its_own(copy.copy(obj))
        try:
            if not isinstance(obj, dict | UserDict):  # its copy may share the items
                return type(obj)(after)  # type: ignore[call-arg]
            fresh = copy.copy(obj)  # keeps the order, a default factory, attributes
            for key, value in after.items():
                fresh[key] = value
        except TypeError as refusal:
            raise UsageError(
                f"expected a Mapping that can be made from a dict, got {_kind(obj)}, which "
                f"refuses ({refusal}): give it a method to(device)."
            ) from refusal
        return self._attributes(fresh, obj)

    def _dataclass(self, obj: Any) -> Any:
        fields = [field for field in dataclasses.fields(obj) if hasattr(obj, field.name)]
        before = [getattr(obj, field.name) for field in fields]
        after = [self.move(value) for value in before]
        if _same(after, before):
            return obj
        fresh = copy.copy(obj)  # not dataclasses.replace: __init__ and __post_init__ ran already
        for field, value in zip(fields, after, strict=True):
            object.__setattr__(fresh, field.name, value)  # a frozen one too
        return self._attributes(fresh, obj)

    def _attributes(self, fresh: Any, obj: Any) -> Any:
        """Attributes that mirror what moved, as those of an attribute dictionary do."""
        mirror = getattr(fresh, "__dict__", {})
        if mirror and obj.__dict__ is obj:
            fresh.__dict__ = fresh
            return fresh
        for name, value in mirror.items():
            if id(value) in self.met:
                mirror[name] = self.met[id(value)][1]
        return fresh

    def _optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        for group in optimizer.param_groups:
            # The step counter lives on the CPU, unless the optimizer reads it on the device.
            keeps_step = not (group.get("capturable") or group.get("fused"))
            for parameter in group["params"]:
                state = optimizer.state.get(parameter, {})
                for key, value in state.items():
                    if not (key == "step" and keeps_step):
                        state[key] = self.move(value)
        return optimizer


_UNFINISHED = object()


def _moves_itself(obj: object) -> bool:
    return callable(getattr(type(obj), "to", None))  # of the type: an item may be called "to"


def _same(after: Iterable[object], before: Iterable[object]) -> bool:
    return all(a is b for a, b in zip(after, before, strict=True))


def _accepts(function: Callable[..., object], name: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # one written in C may not say
        return False
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)


def _kind(obj: object) -> str:
    return type(obj).__name__
