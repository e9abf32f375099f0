"""Liger-Kernel's layers against PyTorch's own, forward and backward."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from tests.triton_kernels.cases import Case, gpu, numbers, op

pytest.importorskip("liger_kernel")
__all__ = ["gpu"]


def rms_norm() -> Case:
    layer = op("rms_norm", "RMSNorm")
    inputs = [numbers(8, 64), numbers(64)]
    return lambda x, w: layer(x, w, 1e-6), lambda x, w: F.rms_norm(x, (64,), w, 1e-6), inputs


def layer_norm() -> Case:
    layer = op("layer_norm", "LayerNorm")
    inputs = [numbers(8, 64), numbers(64), numbers(64)]
    return lambda *given: layer(*given, 1e-5), lambda x, w, b: F.layer_norm(x, (64,), w, b), inputs


def group_norm() -> Case:
    layer = op("group_norm", "GroupNorm")
    inputs = [numbers(2, 8, 16), numbers(8), numbers(8)]
    return (
        lambda *given: layer(*given, 8, 4, 1e-5),
        lambda x, w, b: F.group_norm(x, 4, w, b),
        inputs,
    )


def swiglu() -> Case:
    return op("swiglu", "SiLUMul"), lambda a, b: F.silu(a) * b, [numbers(8, 64), numbers(8, 64)]


def geglu() -> Case:
    def plain(a: Tensor, b: Tensor) -> Tensor:
        return F.gelu(a, approximate="tanh") * b

    return op("geglu", "GELUMul"), plain, [numbers(8, 64), numbers(8, 64)]


def cross_entropy() -> Case:
    layer, target = op("cross_entropy", "CrossEntropy"), torch.arange(8, device="cuda")
    return (
        lambda x: layer(x, target, None, -100, 0.0, 0.1),
        lambda x: F.cross_entropy(x, target, label_smoothing=0.1),
        [numbers(8, 100)],
    )


def fused_linear_cross_entropy() -> Case:
    layer = op("fused_linear_cross_entropy", "FusedLinearCrossEntropy")
    target = torch.arange(8, device="cuda")
    inputs = [numbers(8, 32), numbers(100, 32)]
    return lambda x, w: layer(x, w, target), lambda x, w: F.cross_entropy(x @ w.t(), target), inputs


def softmax() -> Case:
    return op("softmax", "Softmax"), lambda x: x.softmax(-1), [numbers(8, 100)]


def kl_div() -> Case:
    layer, target = op("kl_div", "KLDivLoss"), numbers(8, 100).softmax(-1)
    return (
        lambda x: layer(x, target, "batchmean"),
        lambda x: F.kl_div(x, target, reduction="batchmean"),
        [numbers(8, 100).log_softmax(-1)],
    )


def tvd() -> Case:
    layer, target = op("tvd", "TVDLoss"), numbers(8, 100).softmax(-1)
    return (
        lambda x: layer(x, target, None, "batchmean", -100),
        lambda x: 0.5 * (x - target).abs().sum() / 8,
        [numbers(8, 100).softmax(-1)],
    )


def dyt() -> Case:
    inputs = [numbers(8, 64), numbers(1), numbers(64), numbers(64)]
    return op("dyt", "DyT"), lambda x, a, g, b: g * torch.tanh(a * x) + b, inputs


def fused_add_rms_norm() -> Case:
    layer = op("fused_add_rms_norm", "FusedAddRMSNorm")
    inputs = [numbers(8, 64), numbers(8, 64), numbers(64)]
    return (
        lambda *given: layer(*given, 1e-6, 0.0, "llama", False),
        lambda x, r, w: F.rms_norm(x + r, (64,), w, 1e-6),
        inputs,
    )


CASES = (
    *(rms_norm, layer_norm, group_norm, swiglu, geglu, cross_entropy, fused_linear_cross_entropy),
    *(softmax, kl_div, tvd, dyt, fused_add_rms_norm),
)


def with_gradients(function: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor]:
    own = [each.detach().clone().requires_grad_() for each in inputs]
    result = function(*own)
    result = result[0] if isinstance(result, tuple) else result
    weights = torch.linspace(-1, 1, result.numel(), device="cuda").view(result.shape)
    (result * weights).sum().backward()
    return [result.detach(), *(each.grad for each in own if each.grad is not None)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_layer_has_pytorchs_numbers(case: Callable[[], Case]) -> None:
    torch.manual_seed(0)
    triton, plain, inputs = case()
    mine, reference = with_gradients(triton, inputs), with_gradients(plain, inputs)
    assert len(mine) == len(inputs) + 1
    assert_close(mine, reference, rtol=1e-4, atol=1e-4)
