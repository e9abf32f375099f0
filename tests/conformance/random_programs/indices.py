"""Reading and writing by positions: indices, masks, gather, scatter, sorting."""

from typing import Any

import torch

from tests.conformance.random_programs.choices import Choices
from tests.conformance.random_programs.running import Running
from tests.conformance.random_programs.shapes import dimension
from tests.conformance.random_programs.values import Twin

ALONG = [
    "index_select", "gather", "index_add", "index_copy", "index_fill", "scatter", "scatter_add",
    "scatter_reduce", "take_along_dim",
]  # fmt: skip


def positions(running: Running, choices: Choices, value: Twin, dim: int, shape: Any) -> Twin:
    """Indices into a dimension, on the device of the value."""
    high = max(value.shape[dim], 1)
    return running.new(choices, shape, torch.int64, value.device, low=0, high=high)


def place(running: Running, choices: Choices, value: Twin) -> tuple[Any, ...]:
    """What stands between the brackets; indices may be on the host, too."""
    found: list[Any] = []
    device = choices.among([value.device, value.device, "cpu"])
    if choices.once_in(4):
        return (running.new(choices, value.shape, torch.bool, device),)
    for dim in range(min(value.dim, 1 + choices.below(3))):
        length = value.shape[dim]
        kind = choices.among(["index", "number", "slice", "all", "none", "mask"])
        if kind == "index" and length:
            shape = choices.among([[2], [3], [2, 2], []])
            low = -length if choices.once_in(3) else 0
            found.append(running.new(choices, shape, torch.int64, device, low=low, high=length))
        elif kind == "number" and length:
            found.append(choices.below(length))
        elif kind == "mask":
            found.append(running.new(choices, [length], torch.bool, device))
        elif kind == "none":
            found.append(None)
        elif kind == "slice":
            found.append(slice(choices.below(length + 1), None, 1 + choices.below(2)))
        else:
            found.append(slice(None))
    return tuple(found) or (...,)


def read(running: Running, choices: Choices) -> None:
    value = running.pick(choices, lambda v: v.dim > 0)
    where = place(running, choices, value)
    running.apply("[]", lambda tensor, *place: tensor[tuple(place)], value, *where)


def write(running: Running, choices: Choices) -> None:
    value = running.pick(choices, lambda v: v.dim > 0)
    where = place(running, choices, value)
    device = value.device

    def assigned(tensor: torch.Tensor, source: Any, *place: Any) -> torch.Tensor:
        tensor[tuple(place)] = source
        return tensor

    source: Any = choices.among([1, 0, True])
    if choices.once_in(2):
        source = running.new(choices, choices.among([[], [1]]), value.dtype, device)
    running.apply("[] =", assigned, value, source, *where)
    running.check(value)


def put(running: Running, choices: Choices) -> None:
    value = running.pick(choices, lambda v: v.dim > 0 and 0 not in v.shape)
    flat = [value.shape.numel()]
    where = running.new(choices, [3], torch.int64, value.device, low=0, high=flat[0])
    source = running.new(choices, [3], value.dtype, value.device)
    name = choices.among(["put_", "take", "index_put_"])
    if name == "take":
        running.apply(name, torch.take, value, where)
    elif name == "put_":
        running.apply(name, torch.Tensor.put_, value, where, source, choices.once_in(2))
    else:
        first = positions(running, choices, value, 0, [3])
        row = running.new(choices, [3, *value.shape[1:]], value.dtype, value.device)
        running.apply(name, torch.Tensor.index_put_, value, [first], row, choices.once_in(2))
    running.check(value)


def along(running: Running, choices: Choices) -> None:
    """Ops that take a dimension and indices into it."""
    value = running.pick(choices, lambda v: v.dim > 0 and 0 not in v.shape)
    dim = dimension(choices, value)
    shape = list(value.shape)
    shape[dim] = 1 + choices.below(3)
    name = choices.among(ALONG)
    place = "_" if name not in ("index_select", "gather", "take_along_dim") else ""
    place = place if choices.once_in(2) else ""
    function = getattr(torch.Tensor, name + place)
    flat = name.startswith("index")
    where = positions(running, choices, value, dim, [shape[dim]] if flat else shape)
    source = running.new(choices, shape, value.dtype, value.device)
    if name in ("index_select", "gather"):
        running.apply(name, function, value, dim, where)
    elif name == "take_along_dim":
        running.apply(name, function, value, where, dim)
    elif name == "index_fill":
        running.apply(name + place, function, value, dim, where, 1)
    elif name == "scatter_reduce":
        how = choices.among(["sum", "prod", "amax", "amin", "mean"])
        summed = value.dtype is torch.bool or value.dtype.is_complex
        how = "sum" if summed else how  # CUDA has no other kernel
        running.apply(name + place, function, value, dim, where, source, how)
    else:
        running.apply(name + place, function, value, dim, where, source)
    running.check(value)


def masked(running: Running, choices: Choices) -> None:
    value = running.pick(choices)
    mask = running.new(choices, value.shape, torch.bool, value.device)
    name = choices.among(["masked_fill", "masked_fill_", "masked_select", "where", "nonzero",
                          "masked_scatter", "argwhere", "count_nonzero"])  # fmt: skip
    if name == "where":
        other = running.new(choices, value.shape, value.dtype, value.device)
        running.apply(name, torch.where, mask, value, choices.among([other, 0]))
    elif name in ("masked_fill", "masked_fill_"):
        running.apply(name, getattr(torch.Tensor, name), value, mask, 1)
    elif name == "masked_scatter":
        source = running.new(choices, value.shape, value.dtype, value.device)
        running.apply(name, torch.masked_scatter, value, mask, source)
    elif name == "masked_select":
        running.apply(name, torch.masked_select, value, mask)
    else:
        running.apply(name, getattr(torch, name), value)
    running.check(value)


def ordered(running: Running, choices: Choices) -> None:
    """Sorting, and what looks at neighbours along a dimension."""
    value = running.pick(choices, lambda v: not v.dtype.is_complex and v.dim > 0)
    dim = dimension(choices, value)
    name = choices.among(["sort", "argsort", "topk", "kthvalue", "cumsum", "cumprod", "cummax",
                          "unique", "unique_consecutive", "diff", "logcumsumexp", "msort",
                          "median", "mode"])  # fmt: skip
    if running.inside("autocast"):
        name = "sort"
    function = getattr(torch, name)
    if name in ("sort", "argsort"):
        running.apply(name, function, value, dim=dim, descending=choices.once_in(2), stable=True)
    elif name in ("topk", "kthvalue"):
        running.apply(name, function, value, 1 + choices.below(3), dim)
    elif name in ("unique", "unique_consecutive"):
        running.apply(name, function, value, return_inverse=choices.once_in(2), return_counts=True)
    elif name == "diff":
        running.apply(name, function, value, 1, dim)
    else:
        running.apply(name, function, value, *([] if name == "msort" else [dim]))


KINDS = {
    "read": (read, 3), "write": (write, 3), "put": (put, 2), "along": (along, 4),
    "masked": (masked, 3), "ordered": (ordered, 3),
}  # fmt: skip
