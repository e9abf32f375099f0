"""Hollow ops have the sizes, strides and dtypes that PyTorch's shape functions say."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from anydevice.virtual.machine import virtual_gpus
from tests.virtual.compiled.strides import Compared, of_the_database

KINDS = {"flash": "FLASH", "efficient": "EFFICIENT", "cudnn": "CUDNN"}
HALF: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}


@pytest.fixture(autouse=True)
def hollow() -> Iterator[None]:
    with virtual_gpus(1, "h100", hollow=True):
        yield


def heads(order: str) -> Tensor:
    """Two texts of 64 words, 8 heads of 64; as they are split from one product, or alone."""
    if order == "alone":
        return torch.randn(2, 8, 64, 64, requires_grad=True, **HALF)
    return torch.randn(2, 64, 8, 64, requires_grad=True, **HALF).transpose(1, 2)


@pytest.mark.parametrize("kernel", KINDS)
def test_attention_lies_in_memory_as_inductor_asserts(kernel: str) -> None:
    compared = Compared()
    with sdpa_kernel(getattr(SDPBackend, f"{KINDS[kernel]}_ATTENTION")), compared:
        for order in ("split", "alone"):
            q, k, v = (heads(order) for _ in range(3))
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            for gradient in (torch.ones(out.shape, **HALF), heads("split").detach()):
                torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)
    called = f"aten._scaled_dot_product_{kernel}_attention"
    assert {f"{called}.default", f"{called}_backward.default"} <= compared.seen
    assert compared.different == {}


def test_products_and_convolutions_lie_in_memory_as_inductor_asserts() -> None:
    compared, one = Compared(), torch.ones((), device="cuda")
    with compared:
        bytes_, eighths = (torch.zeros(32, 32, device="cuda").to(t) for t in EIGHT)
        torch._int_mm(bytes_, bytes_.t())
        torch._scaled_mm(eighths, eighths.t(), one, one, out_dtype=torch.bfloat16)
        images = torch.randn(2, 4, 8, 8, device="cuda").to(memory_format=torch.channels_last)
        images.requires_grad_()
        plain = nn.Conv2d(4, 8, 3).cuda()
        layer = deepcopy(plain).to(memory_format=torch.channels_last)
        for inputs, weights in ((images, layer), (images.contiguous(), layer), (images, plain)):
            result = weights(inputs)
            result.sum().backward(retain_graph=True)
            result.backward(torch.ones_like(result))
        rows, weights = torch.zeros(32, 16, **HALF), torch.zeros(2, 16, 32, **HALF)
        ends = torch.tensor([16, 32], dtype=torch.int32, device="cuda")
        torch._grouped_mm(rows, weights, offs=ends)
    assert {"aten._int_mm.default", "aten._scaled_mm.default"} <= compared.seen
    assert {"aten.convolution_backward.default", "aten._grouped_mm.default"} <= compared.seen
    assert compared.different == {}


EIGHT = (torch.int8, torch.float8_e4m3fn)


@pytest.mark.long
def test_what_inductor_calls_lies_in_memory_as_it_asserts() -> None:
    compared = of_the_database()
    assert len(compared.seen) > 100
    assert compared.different == {}
