"""torch.cuda.FloatTensor and its like, which a build without CUDA names but does not make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

DTYPES = {
    "DoubleTensor": "float64",
    "FloatTensor": "float32",
    "LongTensor": "int64",
    "IntTensor": "int32",
    "ShortTensor": "int16",
    "CharTensor": "int8",
    "ByteTensor": "uint8",
    "BoolTensor": "bool",
    "HalfTensor": "float16",
    "BFloat16Tensor": "bfloat16",
}


class TensorType(type):
    """A type of tensors: what torch.tensortype is in PyTorch."""

    dtype: torch.dtype
    layout: torch.layout
    is_cuda = True
    is_sparse: bool

    def __instancecheck__(cls, instance: Any) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.is_cuda
            and instance.dtype == cls.dtype
            and instance.layout == cls.layout
        )

    def __call__(cls, *arguments: Any, **options: Any) -> torch.Tensor:
        """A tensor of these sizes, of this data, or empty; a sparse one of indices and values."""
        if not cls.is_sparse:
            empty = torch.empty(0, dtype=cls.dtype, device=options.pop("device", "cuda"))
            return empty.new(*arguments, **options)
        if len(arguments) >= 2 and isinstance(arguments[0], torch.Tensor):
            return torch.sparse_coo_tensor(*arguments, dtype=cls.dtype, device="cuda", **options)
        size = arguments[0] if arguments and not isinstance(arguments[0], int) else arguments
        made = torch.empty(size or (0,), dtype=cls.dtype, layout=cls.layout, device="cuda")
        return made

    def __repr__(cls) -> str:
        return f"<class '{cls.__name__}'>"


def names() -> dict[str, Any]:
    """What torch._C calls them."""
    plain: Any = torch._C._set_default_tensor_type

    def set_default_tensor_type(kind: Any) -> None:
        if not isinstance(kind, TensorType):
            if _default_is_cuda():
                torch.set_default_device(None)
            plain(kind)
            return
        if kind.is_sparse or not kind.dtype.is_floating_point:
            raise TypeError(
                f"only floating-point types are supported as the default type, got {kind.__name__}"
            )
        torch.set_default_dtype(kind.dtype)
        torch.set_default_device("cuda")

    return {"_set_default_tensor_type": set_default_tensor_type}


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """The types, under the names that torch.cuda and torch.cuda.sparse have."""
    for name, dtype_name in DTYPES.items():
        dtype = getattr(torch, dtype_name)
        yield torch.cuda, name, _make(f"torch.cuda.{name}", dtype, torch.strided)
        if hasattr(torch.cuda.sparse, name):
            yield (
                torch.cuda.sparse,
                name,
                _make(f"torch.cuda.sparse.{name}", dtype, torch.sparse_coo),
            )


def _make(name: str, dtype: torch.dtype, layout: torch.layout) -> TensorType:
    is_sparse = layout != torch.strided
    inside = {"dtype": dtype, "layout": layout, "is_sparse": is_sparse, "__module__": "builtins"}
    return TensorType(name, (), inside)  # Tensor.type() reads the whole name


def _default_is_cuda() -> bool:
    return torch.get_default_device().type == "cuda"
