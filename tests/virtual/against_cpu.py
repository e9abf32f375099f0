"""One piece of a program, run on the CPU and on a virtual GPU: the results must be the same."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random numbers on the CPU that take a gradient."""
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def same(
    program: Callable[..., Any], *inputs: Any, within: float = 0.0, outputs_within: float = 0.0
) -> None:
    """`program(*inputs)` gives equal results on both, and gradients that are equal to `within`.

    Tensors and modules among the inputs are copied to each device first.
    """
    on_cpu = tree_map(copy_to("cpu"), inputs)
    on_gpu = tree_map(copy_to("cuda"), inputs)
    expected, found = program(*on_cpu), program(*on_gpu)
    compare("output", expected, found, outputs_within)
    if backward(expected) and backward(found):
        compare("gradient", list(gradients(on_cpu)), list(gradients(on_gpu)), within)


def copy_to(device: str) -> Callable[[Any], Any]:
    def moved(value: Any) -> Any:
        if isinstance(value, nn.Module):
            return copy.deepcopy(value).to(device)
        if isinstance(value, Tensor):
            return value.detach().to(device).requires_grad_(value.requires_grad)
        return value

    return moved


def backward(results: Any) -> bool:
    """Adds up every result's squares and goes back from there."""
    roots = [r for r in tree_flatten(results)[0] if isinstance(r, Tensor) and r.requires_grad]
    if roots:
        sum(root.double().square().sum().to("cpu") for root in roots).backward()
    return bool(roots)


def gradients(inputs: Any) -> Iterator[Tensor | None]:
    for value in tree_flatten(inputs)[0]:
        if isinstance(value, nn.Module):
            yield from (parameter.grad for parameter in value.parameters())
        elif isinstance(value, Tensor) and value.requires_grad:
            yield value.grad


def compare(what: str, expected: Any, found: Any, within: float) -> None:
    expected, found = tree_flatten(expected)[0], tree_flatten(found)[0]
    assert len(expected) == len(found)
    for place, (cpu, gpu) in enumerate(zip(expected, found, strict=True)):
        if isinstance(cpu, Tensor):
            assert gpu.is_cuda
            torch.testing.assert_close(
                gpu.cpu(),
                cpu,
                rtol=within,
                atol=within,
                equal_nan=True,
                msg=lambda text, place=place: f"{what} {place}: {text}",
            )
        else:
            assert gpu == cpu
