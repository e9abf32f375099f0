"""Derivatives of the ops of `op_db`: backward, second, and forward mode."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves, tree_map_only

from tests.conformance.agree import agree, attempt
from tests.conformance.compare import Raised
from tests.conformance.ops import Concern, call, has_cpu, on_cuda, samples


def gradients(op: OpInfo, sample: SampleInput, device: str, again: bool = False) -> Any:
    """The gradients of all that can have one; with `again`, those of the gradients."""
    answer, arguments = call(op, sample, device)
    if isinstance(answer, Raised):
        return answer
    processed = sample.output_process_fn_grad(answer)
    inputs = followed(arguments)
    first = attempt(derive, followed(processed), inputs, again)
    if not again or isinstance(first, Raised):
        return first
    return first, attempt(derive, followed(first), inputs, False)


def followed(tree: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor) and t.requires_grad]


def derive(results: list[Any], inputs: list[Any], again: bool) -> Any:
    dense = [t if t.layout is torch.strided else t.to_dense() for t in results]
    if not dense or not inputs:
        return None
    source = torch.Generator().manual_seed(7)
    arriving = [
        torch.randn(t.shape, dtype=t.dtype, generator=source).to(t.device, copy=True) for t in dense
    ]
    return torch.autograd.grad(dense, inputs, arriving, create_graph=again, allow_unused=True)


def backward(op: OpInfo, dtype: torch.dtype, limit: int | None) -> Iterator[Callable[[], bool]]:
    for sample in samples(op, dtype, limit, grad=True):
        yield lambda s=sample: computed(agree(lambda device: gradients(op, s, device)))


def gradgrad(op: OpInfo, dtype: torch.dtype, limit: int | None) -> Iterator[Callable[[], bool]]:
    for sample in samples(op, dtype, limit or 2, grad=True):
        yield lambda s=sample: computed(agree(lambda device: gradients(op, s, device, again=True)))


def computed(answer: Any) -> bool:
    return any(isinstance(t, torch.Tensor) for t in tree_leaves(answer))


def jvp(op: OpInfo, dtype: torch.dtype, limit: int | None) -> Iterator[Callable[[], bool]]:
    """Forward-mode derivatives, each input pushed along itself."""

    def run(sample: SampleInput, device: str) -> Any:
        def pushed(leaf: torch.Tensor) -> torch.Tensor:
            return forward_ad.make_dual(leaf, leaf.detach().clone()) if leaf.requires_grad else leaf

        def tangents(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = tree_map_only(torch.Tensor, pushed, (args, kwargs))
            unpack = forward_ad.unpack_dual
            return tree_map_only(torch.Tensor, lambda t: unpack(t).tangent, op(*args, **kwargs))

        with forward_ad.dual_level():
            return call(tangents, sample, device)[0]

    for sample in samples(op, dtype, limit or 2, grad=True):
        yield lambda s=sample: computed(agree(lambda device: run(s, device)))


def differentiable(op: OpInfo, dtype: torch.dtype) -> bool:
    exact = dtype in (torch.float32, torch.float64)
    supported = on_cuda(op, dtype) and dtype in op.supported_backward_dtypes("cuda")
    return exact and supported and has_cpu(op)


CHECKS: dict[str, tuple[Concern, Callable[..., Iterator[Callable[[], bool]]]]] = {
    "backward": (differentiable, backward),
    "gradgrad": (
        lambda op, d: d is torch.float64 and op.supports_gradgrad and differentiable(op, d),
        gradgrad,
    ),
    "jvp": (
        lambda op, d: d is torch.float32 and op.supports_forward_ad and differentiable(op, d),
        jvp,
    ),
}
