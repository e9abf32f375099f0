"""Sizes, strides and dtypes of what hollow GPUs give, against PyTorch's own shape functions.

Inductor asserts that what it calls has the strides that these functions say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

EXTERN = {"mm", "addmm", "bmm", "baddbmm", "convolution", "_int_mm", "_scaled_mm", "_grouped_mm"}
SAMPLES = 3  # of each op and dtype
DTYPES = (torch.float32, torch.bfloat16)
Form = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


@dataclass
class Compared(TorchDispatchMode):  # type: ignore[misc]
    """Each op that runs inside is compared; `only` these names of aten, if there are any."""

    only: frozenset[str] = frozenset()
    seen: set[str] = field(default_factory=set)
    different: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(op)
        wanted = not self.only or op._overloadpacket.__name__ in self.only
        expected = said(op, args, kwargs) if wanted else None
        result = op(*args, **kwargs)
        if expected is not None:
            self.seen.add(name)
            if (given := forms(result)) != expected:
                self.different.setdefault(name, f"{given} for {expected}")
        return result


def said(op: Any, args: Any, kwargs: Any) -> list[Form] | None:
    """What the shape function says; None if it has none, or refuses."""
    try:
        with FakeTensorMode() as mode:
            given = tree_map_only(Tensor, mode.from_tensor, (args, kwargs))
            return forms(op(*given[0], **given[1]))
    except Exception:  # it depends on values, or the op has no such function
        return None


def forms(result: Any) -> list[Form]:
    """Size, strides and dtype of each tensor; the strides of what has several elements."""
    return [_form(each) for each in tree_leaves(result) if isinstance(each, Tensor)]


def _form(tensor: Tensor) -> Form:
    if tensor.layout != torch.strided or not tensor.numel():
        return tuple(tensor.shape), (), tensor.dtype
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(tensor.shape), tuple(s if n > 1 else 0 for n, s in strides), tensor.dtype


def fallbacks() -> frozenset[str]:
    """The ops that Inductor does not write itself, but calls."""
    from torch._inductor import lowering

    packets = (getattr(op, "_overloadpacket", op) for op in lowering.fallbacks)
    return frozenset({packet.__name__ for packet in packets} | EXTERN)


def of_the_database() -> Compared:
    """Runs samples of all ops, forward and backward, on the hollow GPU that there is."""
    from torch.testing._internal.common_methods_invocations import op_db

    answer = Compared(fallbacks())
    for info in op_db:
        for dtype in DTYPES:
            for sample in _samples(info, dtype):
                try:
                    with answer:
                        out = info(sample.input, *sample.args, **sample.kwargs)
                        _backward(out)
                except Exception:  # what a hollow GPU refuses is no answer
                    continue
    return answer


def _samples(info: Any, dtype: torch.dtype) -> Iterator[Any]:
    if dtype not in info.supported_dtypes("cuda"):
        return
    grad = bool(info.supports_autograd)
    try:
        samples = info.sample_inputs("cuda", dtype, requires_grad=grad)
        for _, sample in zip(range(SAMPLES), samples, strict=False):
            yield sample
    except Exception:  # it reads values to make them
        return


def _backward(out: Any) -> None:
    trained = [t for t in tree_leaves(out) if isinstance(t, Tensor) and t.requires_grad]
    if trained and all(not t.is_complex() for t in trained):
        torch.autograd.backward(trained, [torch.ones_like(t) for t in trained])
