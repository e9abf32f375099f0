"""What all calls of an op's overload have in common, looked up once for each overload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

# PyTorch computes the hash of an overload, its schema and most of its properties anew each time.
# Plans ask for them at each op.

# Ops without a kernel, apart from views, which show in their schema.
SILENT = frozenset(
    (
        "_unsafe_view",
        "_reshape_alias",
        "detach",
        "detach_",
        "lift_fresh",
        "set_",
        "resize_",
        "resize_as_",
        "is_pinned",
        "_has_compatible_shallow_copy_type",
        "empty_like",
        "empty",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "_local_scalar_dense",
        "record_stream",
    )
)


@dataclass(frozen=True, slots=True)
class Overload:
    """One overload of an op.

    Attributes:
        op: The overload.
        packet: All overloads of its name.
        name: `addmm` of `aten::addmm.out`.
        mutable: Whether it writes to an argument.
        silent: Whether it launches nothing.
        collective: Whether it is of torch.distributed.
        of_pytorch: Whether it is of ATen.
        written: Place and name of the arguments that it writes to.
    """

    op: Any
    packet: Any
    name: str
    mutable: bool
    silent: bool
    collective: bool
    of_pytorch: bool
    written: tuple[tuple[int, str], ...]

    def writes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """The tensors that a call writes to, also those in lists."""
        if not self.mutable:
            return []
        values = [
            args[place] if place < len(args) else kwargs.get(name) for place, name in self.written
        ]
        return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


_seen: dict[int, Overload] = {}  # by the overload's id, which nothing else gets: it is kept


def overload_of(op: Any) -> Overload:
    """What is known of an overload.

    >>> overload_of(torch.ops.aten.addmm.out).name
    'addmm'
    """
    found = _seen.get(id(op))
    if found is None:
        found = _seen[id(op)] = _learn(op)
    return found


def _learn(op: Any) -> Overload:
    schema = op._schema
    name = str(schema.name).partition("::")[2]
    return Overload(
        op=op,
        packet=op._overloadpacket,
        name=name,
        mutable=schema.is_mutable,
        silent=_is_silent(op, name),
        collective=op.namespace in ("c10d", "_c10d_functional"),
        of_pytorch=op.namespace == "aten",
        written=tuple(
            (place, argument.name)
            for place, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ),
    )


def _is_silent(op: Any, name: str) -> bool:
    if op.namespace not in ("aten", "torchvision") or name in SILENT:
        return op.namespace in ("aten", "profiler", "prim", "anydevice", "debugprims")
    returns = [returned.alias_info for returned in op._schema.returns]
    return bool(returns) and all(alias and not alias.is_write for alias in returns)
