"""torch.cuda.FloatTensor and its like, which a build without CUDA names but does not make."""

from __future__ import annotations

import warnings
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


_warned: set[str] = set()


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
        _warn_once(
            "The torch.cuda.*DtypeTensor constructors are no longer recommended. It's best to use "
            "methods such as torch.tensor(data, dtype=*, device='cuda') to create tensors."
        )
        device = options.pop("device", None)
        if device is not None and torch.device(device).type != "cuda":
            raise RuntimeError(
                "legacy constructor expects device type: cuda but device type: "
                f"{torch.device(device).type} was passed"
            )
        if not cls.is_sparse:
            empty = torch.empty(0, dtype=cls.dtype, device="cuda" if device is None else device)
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
        _warn_once(
            "torch.set_default_tensor_type() is deprecated as of PyTorch 2.1, please use "
            "torch.set_default_dtype() and torch.set_default_device() as alternatives."
        )
        torch.set_default_dtype(kind.dtype)
        torch.set_default_device("cuda")

    return {"_set_default_tensor_type": set_default_tensor_type}


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """The types, under the names that torch.cuda and torch.cuda.sparse have."""
    _warned.clear()
    classes: Any = {kind for kind in torch._tensor_classes if not kind.is_cuda}
    for owner, layout in ((torch.cuda, torch.strided), (torch.cuda.sparse, torch.sparse_coo)):
        for name, dtype in DTYPES.items():
            if hasattr(owner, name):
                kind = _make(f"{owner.__name__}.{name}", getattr(torch, dtype), layout)
                classes.add(kind)
                yield owner, name, kind
    yield torch, "_tensor_classes", classes


def _make(name: str, dtype: torch.dtype, layout: torch.layout) -> TensorType:
    is_sparse = layout != torch.strided
    inside = {"dtype": dtype, "layout": layout, "is_sparse": is_sparse, "__module__": "builtins"}
    return TensorType(name, (), inside)  # Tensor.type() reads the whole name


def _warn_once(text: str) -> None:
    """As TORCH_WARN_ONCE does, at the line that called into torch."""
    if text not in _warned or torch.is_warn_always_enabled():
        _warned.add(text)
        warnings.warn(text, stacklevel=3)


def _default_is_cuda() -> bool:
    return torch.get_default_device().type == "cuda"
