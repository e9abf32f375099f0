"""Whether the GPU's answer is the CPU's: bit for bit, with the first difference as a sentence."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

# One bit pattern a width; int views exist for every element size.
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Raised:
    """What an op said instead of an answer: its error's type and first line, without the device."""

    type: str
    text: str

    @classmethod
    def by(cls, error: BaseException) -> "Raised":
        text = str(error).strip().split("\n")[0]
        for device in ("cuda:0", "CUDA", "cuda", "CPU"):
            text = text.replace(device, "cpu")
        return cls(type(error).__name__, text)


def difference(
    expected: Any, got: Any, *, values: bool = True, close: bool = False, device: str = "cuda"
) -> str | None:
    """The first way in which `got` (on `device`) is not `expected` (on the CPU), or None.

    `values=False` compares everything but the numbers, `close=True` allows them rounding.
    """
    left, left_shape = tree_flatten(expected)
    right, right_shape = tree_flatten(got)
    if errors(left) != errors(right):
        return f"expected {(errors(left) or ['an answer'])[0]}, got {(errors(right) or ['one'])[0]}"
    if left_shape != right_shape:
        return f"expected the structure {left_shape}, got {right_shape}"
    for i, (a, b) in enumerate(zip(left, right, strict=True)):
        if found := leaf_difference(a, b, values, close, device):
            return f"result {i}: {found}" if len(left) > 1 else found
    return None


def errors(leaves: list[Any]) -> list[str]:
    return [f"{leaf.type}: {leaf.text}" for leaf in leaves if isinstance(leaf, Raised)]


def shown(leaf: Any) -> str:
    if isinstance(leaf, torch.Tensor):
        return f"a {leaf.dtype} tensor of shape {list(leaf.shape)}"
    return repr(leaf)


def leaf_difference(a: Any, b: Any, values: bool, close: bool, device: str) -> str | None:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return tensor_difference(a, b, values, close, device)
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return f"expected {shown(a)}, got {shown(b)}"
    if isinstance(a, torch.device) and a.type == "cpu":
        return None if b.type == device else f"expected device {device}, got {b}"
    same = a == b or (a != a and b != b) or (type(a) is type(b) and not (values and comparable(a)))
    return None if same else f"expected {shown(a)}, got {shown(b)}"


def comparable(leaf: Any) -> bool:
    return isinstance(leaf, int | float | complex | str | tuple | torch.dtype)


def tensor_difference(
    a: torch.Tensor, b: torch.Tensor, values: bool, close: bool, device: str
) -> str | None:
    # What an op was told to make on the other device comes out crosswise.
    on_cpu = hasattr(b, "stays_on_cpu") or a.device.type == "cuda"
    if b.device.type != ("cpu" if on_cpu else device):
        return f"the result is on {b.device}"
    for name in ("dtype", "shape", "layout", "requires_grad", "is_nested"):
        if getattr(a, name) != getattr(b, name):
            return f"expected {name} {getattr(a, name)}, got {getattr(b, name)}"
    a, b = a.detach(), b.detach()
    for part, of_a, of_b in parts(a, b):
        if found := strided_difference(of_a, of_b, values, close):
            return part + found
    return None


def parts(a: torch.Tensor, b: torch.Tensor) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """The strided tensors that `a` and `b` are made of."""
    if a.is_nested:
        return [("", *pair) for pair in zip(a.unbind(), b.unbind(), strict=True)]
    if a.is_quantized:
        return [("int_repr: ", a.int_repr(), b.int_repr())]
    names = {
        torch.strided: [],
        torch.sparse_coo: ["_indices", "_values"],
        torch.sparse_csr: ["crow_indices", "col_indices", "values"],
        torch.sparse_bsr: ["crow_indices", "col_indices", "values"],
        torch.sparse_csc: ["ccol_indices", "row_indices", "values"],
        torch.sparse_bsc: ["ccol_indices", "row_indices", "values"],
    }.get(a.layout, [])
    # Cloned: what is a view of a sparse tensor refuses some questions about its strides.
    found = [(f"{n}: ", getattr(a, n)().clone(), getattr(b, n)().clone()) for n in names]
    return found or [("", a, b)]


def strided_difference(a: torch.Tensor, b: torch.Tensor, values: bool, close: bool) -> str | None:
    if a.shape != b.shape:
        return f"expected shape {list(a.shape)}, got {list(b.shape)}"
    if a.numel() and steps(a) != steps(b) and not close:
        return f"expected stride {a.stride()}, got {b.stride()}"
    if not values or a.numel() == 0:
        return None
    a, b = a.cpu(), b.cpu()
    if close:
        return distance(a, b)
    equal = same_bits(a, b)
    if equal.all():
        return None
    where = tuple(int(i) for i in (~equal).nonzero()[0])
    count = f"{int((~equal).sum())} of {a.numel()} elements differ"
    return f"{count}, first at {list(where)}: {a[where].item()} on the CPU, {b[where].item()} here"


def steps(tensor: torch.Tensor) -> list[int]:
    """The strides that mean something: those of dimensions longer than one."""
    return [s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Elementwise, any NaN counting as any other."""
    a, b = a.resolve_conj().resolve_neg(), b.resolve_conj().resolve_neg()
    if a.is_complex():
        return same_bits(torch.view_as_real(a), torch.view_as_real(b)).all(-1)
    width = BITS[a.element_size()]
    equal = a.contiguous().view(width) == b.contiguous().view(width)
    if a.is_floating_point():
        equal |= a.float().isnan() & b.float().isnan()
    return equal


def distance(a: torch.Tensor, b: torch.Tensor) -> str | None:
    """Rounding may move an element by some units in the last place of the largest one, or of 1."""
    exact = a.is_floating_point() or a.is_complex()
    allowed = 16 * torch.finfo(a.dtype).eps if exact else 0
    largest = max(a.abs().nan_to_num(0, 0, 0).max().item(), 1) if exact else 0
    wide = torch.complex128 if a.is_complex() else torch.float64
    near = torch.isclose(
        b.to(wide), a.to(wide), rtol=allowed, atol=allowed * largest, equal_nan=True
    )
    if near.all():
        return None
    where = tuple(int(i) for i in (~near).nonzero()[0])
    count = f"{int((~near).sum())} of {a.numel()} elements are not even close"
    return f"{count}, first at {list(where)}: {a[where].item()} on the CPU, {b[where].item()} here"


def sharing(arguments: Any, result: Any) -> list[tuple[int, int, int]]:
    """Which results live in which arguments' memory, and how far into it."""
    inputs = [t for t in tree_flatten(arguments)[0] if has_storage(t)]
    outputs = [t for t in tree_flatten(result)[0] if has_storage(t)]
    return [
        (i, j, out.storage_offset() - arg.storage_offset())
        for i, out in enumerate(outputs)
        for j, arg in enumerate(inputs)
        if out.untyped_storage()._cdata == arg.untyped_storage()._cdata
    ]


def has_storage(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and not leaf.is_nested
