"""Views, and what else moves elements about."""

from collections.abc import Callable
from typing import Any

import torch

from tests.conformance.random_programs.choices import Choices
from tests.conformance.random_programs.running import Running
from tests.conformance.random_programs.values import Twin

WIDTHS = {1: [torch.uint8, torch.int8], 2: [torch.float16, torch.bfloat16, torch.int16],
          4: [torch.float32, torch.int32, torch.uint8], 8: [torch.float64, torch.int64,
          torch.complex64, torch.float32, torch.int16]}  # fmt: skip


def order(choices: Choices, count: int) -> list[int]:
    left = list(range(count))
    return [left.pop(choices.below(len(left))) for _ in range(count)]


def dimension(choices: Choices, value: Twin) -> int:
    return choices.below(2 * value.dim) - value.dim if value.dim else 0


def span(choices: Choices, length: int) -> tuple[int, int]:
    begin = choices.below(length + 1)
    return begin, choices.below(length - begin + 1)


def transpose(v: Twin, c: Choices) -> tuple[Any, ...]:
    return torch.transpose, dimension(c, v), dimension(c, v)


def permute(v: Twin, c: Choices) -> tuple[Any, ...]:
    return torch.permute, order(c, v.dim)


def select(v: Twin, c: Choices) -> tuple[Any, ...]:
    dim = dimension(c, v)
    return torch.select, dim, c.below(max(v.shape[dim] if v.dim else 0, 1))


def narrow(v: Twin, c: Choices) -> tuple[Any, ...]:
    dim = dimension(c, v)
    return torch.narrow, dim, *span(c, v.shape[dim] if v.dim else 0)


def stepped(v: Twin, c: Choices) -> tuple[Any, ...]:
    return torch.Tensor.__getitem__, (..., slice(c.below(3), None, 1 + c.below(3)))


def unsqueeze(v: Twin, c: Choices) -> tuple[Any, ...]:
    return torch.unsqueeze, c.below(v.dim + 1)


def expand(v: Twin, c: Choices) -> tuple[Any, ...]:
    sizes = [n if n != 1 else c.among([1, 3, 2, 0]) for n in v.shape]
    return torch.Tensor.expand, c.among([[], [2], [0]]) + sizes


def reshape(v: Twin, c: Choices) -> tuple[Any, ...]:
    function = c.among([torch.reshape, torch.Tensor.view])
    sizes = [c.among([1, 2, 3, 4, 5]) for _ in range(c.below(3))]
    return function, c.among([[-1], [-1, *sizes], [*v.shape, 1], [*sizes, -1]])


def flatten(v: Twin, c: Choices) -> tuple[Any, ...]:
    return torch.flatten, c.below(max(v.dim, 1)), -1


def diagonal(v: Twin, c: Choices) -> tuple[Any, ...]:
    return torch.diagonal, c.below(3) - 1, dimension(c, v), dimension(c, v)


def unfold(v: Twin, c: Choices) -> tuple[Any, ...]:
    return torch.Tensor.unfold, dimension(c, v), c.below(4), 1 + c.below(3)


def movedim(v: Twin, c: Choices) -> tuple[Any, ...]:
    return torch.movedim, dimension(c, v), dimension(c, v)


def pieces(v: Twin, c: Choices) -> tuple[Any, ...]:
    function = c.among([torch.chunk, torch.split, torch.tensor_split])
    return function, 1 + c.below(3), dimension(c, v)


def unbind(v: Twin, c: Choices) -> tuple[Any, ...]:
    return torch.unbind, dimension(c, v)


def as_strided(v: Twin, c: Choices) -> tuple[Any, ...]:
    count = v.cpu.untyped_storage().nbytes() // v.cpu.element_size()
    rows, columns = c.below(4), c.below(4)
    steps = [c.below(5), c.below(3)]
    offset = c.below(4)
    last = offset + max(rows - 1, 0) * steps[0] + max(columns - 1, 0) * steps[1]
    return torch.as_strided, (rows, columns) if last < count else (0, columns), steps, offset


def as_dtype(v: Twin, c: Choices) -> tuple[Any, ...]:
    return torch.Tensor.view, c.among(WIDTHS.get(v.cpu.element_size(), [v.dtype]))


def parts(v: Twin, c: Choices) -> tuple[Any, ...]:
    names = ["conj", "real", "imag", "view_as_real"] if v.dtype.is_complex else ["view_as_complex"]
    return (getattr(torch, c.among(names)),)


def plain(v: Twin, c: Choices) -> tuple[Any, ...]:
    names = ["detach", "squeeze", "ravel", "atleast_2d", "mT", "t", "adjoint", "alias"]
    name = c.among(names)
    if name == "mT":
        return (lambda tensor: tensor.mT,)
    return (torch.ops.aten.alias,) if name == "alias" else (getattr(torch, name),)


def copied(v: Twin, c: Choices) -> tuple[Any, ...]:
    dim = dimension(c, v)
    return c.among([
        (torch.flip, [dim]), (torch.roll, 1 + c.below(3), dim), (torch.tril, c.below(3) - 1),
        (torch.triu,), (torch.Tensor.repeat, [2] * max(v.dim, 1)), (torch.tile, (2,)),
        (torch.rot90,), (torch.repeat_interleave, 2), (torch.clone,), (torch.resolve_conj,),
        (torch.diag_embed,), (torch.nn.functional.pad, (1, c.below(3))),
    ])  # fmt: skip


VIEWS: list[Callable[[Twin, Choices], tuple[Any, ...]]] = [
    transpose, permute, select, narrow, stepped, unsqueeze, expand, reshape, flatten, diagonal,
    unfold, movedim, pieces, unbind, as_strided, as_dtype, parts, plain,
]  # fmt: skip


def view(running: Running, choices: Choices) -> None:
    moved(running, choices, choices.among(VIEWS))


def shuffled(running: Running, choices: Choices) -> None:
    moved(running, choices, copied)


def moved(
    running: Running, choices: Choices, how: Callable[[Twin, Choices], tuple[Any, ...]]
) -> None:
    value = running.pick(choices)
    function, *args = how(value, choices)
    running.apply(getattr(function, "__name__", how.__name__), function, value, *args)


def reshaped_in_place(running: Running, choices: Choices) -> None:
    """What changes a tensor itself: its shape, its strides, or the storage that it is in."""
    value = running.pick(choices)
    name = choices.among(["t_", "unsqueeze_", "transpose_", "squeeze_", "set_", "resize_", "data"])
    if name == "unsqueeze_":
        running.apply(name, torch.Tensor.unsqueeze_, value, choices.below(value.dim + 1))
    elif name == "transpose_":
        dims = dimension(choices, value), dimension(choices, value)
        running.apply(name, torch.Tensor.transpose_, value, *dims)
    elif name == "set_":
        same = [v for v in running.values if v.strided and v.device == value.device]
        source = choices.among([v for v in same if v.dtype == value.dtype])
        running.apply(name, torch.Tensor.set_, value, source)
    elif name == "resize_":
        sizes = [choices.among([2, 0, 3, 7, 40]) for _ in range(choices.below(3))]
        running.apply("resize_ and zero_", lambda t: t.resize_(sizes).zero_(), value)
    elif name == "data":
        running.apply("the data of", lambda t: t.data, value)
    else:
        running.apply(name, getattr(torch.Tensor, name), value)
    running.check(value)


def joined(running: Running, choices: Choices) -> None:
    value = running.pick(choices)
    alike = [v for v in running.values if v.strided and v.device == value.device]
    alike = [v for v in alike if v.shape == value.shape]
    given = [value, *(choices.among([*alike, value]) for _ in range(choices.below(4)))]
    name = choices.among(["cat", "stack", "hstack", "vstack", "meshgrid", "broadcast_tensors"])
    if name in ("cat", "stack"):
        running.apply(name, getattr(torch, name), given, dimension(choices, value))
    elif name == "meshgrid":
        running.apply(name, lambda *each: torch.meshgrid(*each, indexing="ij"), *given[:2])
    elif name == "broadcast_tensors":
        running.apply(name, torch.broadcast_tensors, *given)
    else:
        running.apply(name, getattr(torch, name), given)


KINDS = {
    "view": (view, 10), "shuffled": (shuffled, 3), "reshaped_in_place": (reshaped_in_place, 3),
    "joined": (joined, 3),
}  # fmt: skip
