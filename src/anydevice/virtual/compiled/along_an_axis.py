"""tl.reduce, tl.associative_scan and tl.map_elementwise with a kernel's own function.

Triton's interpreter calls the function for each element. Here a call combines whole slices along
the axis, so that it is called as often as the axis is long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from anydevice.virtual.compiled.names import interpreter_names

Slices = tuple[Any, ...]  # arrays of numpy, one for each operand


@contextmanager
def combined_by_slices() -> Iterator[None]:
    """Inside the block the interpreter computes them so."""
    import triton.language as tl

    names = interpreter_names()
    with (
        patch.object(names.Reduce, "generic_reduce", _reduced),
        patch.object(names.Scan, "generic_scan", _scanned),
        patch.object(tl, "map_elementwise", _mapped, create=True),
        patch.object(tl.core, "map_elementwise", _mapped, create=True),
    ):
        yield


def _reduced(self: Any, given: Slices) -> list[Any]:
    operands, axis = self.unravel(given, self.axis)
    rank = len(given[0].shape)
    total: Slices = ()
    for part in _parts(operands, axis):
        total = _combined(self, operands, total, part) if total else part
    if self.keep_dims:
        over = (axis,) if self.axis is not None else tuple(range(rank))
        total = tuple(np.expand_dims(each, over) for each in total)
    return [self.to_tensor(each, one.dtype) for each, one in zip(total, operands, strict=True)]


def _scanned(self: Any, operands: Slices) -> list[Any]:
    seen: list[Slices] = []
    for part in _parts(operands, self.axis):
        seen.append(_combined(self, operands, seen[-1], part) if seen else part)
    rows = [np.stack(each, axis=self.axis) for each in zip(*seen, strict=True)]
    return [self.to_tensor(each, one.dtype) for each, one in zip(rows, operands, strict=True)]


def _parts(operands: Slices, axis: int) -> Iterator[Slices]:
    """One slice after the other."""
    arrays = [np.moveaxis(each.handle.data, axis, 0) for each in operands]
    return zip(*arrays, strict=True)


def _combined(self: Any, operands: Slices, total: Slices, part: Slices) -> Slices:
    """What the function makes of what there is and of one slice more."""
    kinds = [each.dtype for each in operands]
    results = self.combine_fn(
        *(self.to_tensor(each, kind) for each, kind in zip(total, kinds, strict=True)),
        *(self.to_tensor(each, kind) for each, kind in zip(part, kinds, strict=True)),
    )
    results = results if isinstance(results, tuple) else (results,)
    shape = np.shape(part[0])
    return tuple(
        np.broadcast_to(_data(each), shape).astype(before.dtype) if shape else _data(each).item()
        for each, before in zip(results, part, strict=True)
    )


def _data(value: Any) -> Any:
    handle = getattr(value, "handle", None)
    return np.asarray(value) if handle is None else handle.data


def _mapped(function: Callable[..., Any], *given: Any, pack: int = 1, **_: Any) -> Any:
    """Element by element, since the function may branch."""
    names = interpreter_names()
    given = names.semantic.broadcast_tensors(*given)
    flat = [each.handle.data.reshape(-1) for each in given]
    made: list[list[Any]] = []
    single = True
    for start in range(0, flat[0].size, pack):
        scalars = [
            _scalar(array[start + place], each.dtype)
            for array, each in zip(flat, given, strict=True)
            for place in range(pack)
        ]
        results = function(*scalars)
        single = not isinstance(results, tuple)
        made.append([results] if single else list(results))
    outputs = [
        _block([row[at + place] for row in made for place in range(pack)], given[0].shape)
        for at in range(0, len(made[0]), pack)
    ]
    return outputs[0] if single else tuple(outputs)


def _scalar(value: Any, kind: Any) -> Any:
    import triton.language as tl

    return tl.tensor(interpreter_names().Handle(np.array([value]), kind), kind)


def _block(scalars: list[Any], shape: Any) -> Any:
    import triton.language as tl

    first = interpreter_names().semantic.to_tensor(scalars[0])
    data = np.array([_data(each).item() for each in scalars], _data(first).dtype)
    sizes = [int(size) for size in shape]
    kind = tl.block_type(first.dtype, sizes)
    return tl.tensor(interpreter_names().Handle(data.reshape(sizes), first.dtype), kind)
