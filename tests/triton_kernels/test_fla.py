"""flash-linear-attention's core kernels against its own references, forward and backward."""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import anydevice as ad

pytest.importorskip("fla")


@pytest.fixture(scope="module", autouse=True)
def gpu() -> Iterator[None]:
    with ad.virtual_gpus(gpu="h100"):
        torch.manual_seed(0)
        yield


def op(module: str, name: str, **options: Any) -> Callable[..., Tensor]:
    function = getattr(import_module(f"fla.ops.{module}"), name)

    def result(*inputs: Tensor) -> Tensor:
        output = function(*inputs, **options)
        return output[0] if isinstance(output, tuple) else output

    return result


def turned(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """For a reference with heads before words."""
    return lambda *inputs: function(*(each.transpose(1, 2) for each in inputs)).transpose(1, 2)


PLAIN = {"normalize": False}
DELTA = "delta_rule.naive", "delta_rule_recurrence", {}
LINEAR = "linear_attn.naive", "naive_recurrent_linear_attn", PLAIN
CASES: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "fused_recurrent_linear_attn": (("linear_attn", PLAIN), LINEAR),
    "chunk_linear_attn": (("linear_attn", PLAIN), LINEAR),
    "fused_recurrent_gla": (("gla", {}), ("gla.naive", "naive_recurrent_gla", {})),
    "chunk_gla": (("gla", {}), ("gla.naive", "naive_recurrent_gla", {})),
    "chunk_retention": (("retention", {}), ("retention", "fused_recurrent_retention", {})),
    "fused_recurrent_delta_rule": (("delta_rule", {}), DELTA),
    "chunk_delta_rule": (("delta_rule", {}), DELTA),
}
BFLOAT16 = ("chunk_delta_rule",)  # refuses float32


def inputs(name: str) -> list[Tensor]:
    """One text of 32 words, 2 heads of 16; and what the rule forgets, or how much it learns."""
    q, k, v, gate = (torch.randn(1, 32, 2, 16, device="cuda") for _ in range(4))
    if "gla" in name:
        return [q, k, v, torch.nn.functional.logsigmoid(gate)]
    if "delta" in name:
        return [q, torch.nn.functional.normalize(k, dim=-1), v, gate[..., 0].sigmoid()]
    return [q, k, v]


@pytest.mark.parametrize("name", CASES)
def test_a_core_kernel_agrees_with_its_reference(name: str) -> None:
    (module, options), (home, reference, others) = CASES[name]
    kernel, plain = op(module, name, **options), op(home, reference, **others)
    plain = turned(plain) if "delta" in name else plain
    dtype = torch.bfloat16 if name in BFLOAT16 else torch.float32
    given = [each.to(dtype) for each in inputs(name)]
    ours = [each.clone().requires_grad_() for each in given]
    theirs = [each.float().requires_grad_() for each in given]
    out, expected = kernel(*ours), plain(*theirs)
    gradient = torch.randn_like(expected).to(dtype)
    out.backward(gradient)
    expected.backward(gradient.float())
    close(out, expected)
    for one, other in zip(ours, theirs, strict=True):
        close(one.grad, other.grad)


def close(given: Tensor | None, expected: Tensor | None) -> None:
    """To 1e-4; where the kernel computes in bfloat16, to 2 % of the largest."""
    assert given is not None
    assert expected is not None
    most = 2e-2 * expected.abs().max().item() if given.dtype == torch.bfloat16 else 1e-4
    assert_close(given.float(), expected, rtol=1e-4, atol=most)
