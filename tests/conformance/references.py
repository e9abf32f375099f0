"""Ops that CUDA alone has: the same computed on the CPU from what it has."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.testing._internal.opinfo.core import SampleInput


def flash_attention(sample: SampleInput) -> torch.Tensor | None:
    how = sample.kwargs
    if how["dropout_p"]:
        return None
    return attention(sample, lower_right(sample) if how["is_causal"] else None)


def efficient_attention(sample: SampleInput) -> torch.Tensor | None:
    how = sample.kwargs
    if how["dropout_p"] or how["cu_seqlens_k"] is not None or how["bias"] is not None:
        return None
    masks = {0: None, 1: upper_left(sample), 2: lower_right(sample)}
    return attention(sample, masks[how["custom_mask_type"]])


def attention(sample: SampleInput, mask: torch.Tensor | None) -> torch.Tensor:
    """Exactly, in float64, of (batch, length, heads, width)."""
    q, k, v = (t.detach().double().transpose(1, 2) for t in (sample.input, *sample.args))
    exact = F.scaled_dot_product_attention(q, k, v, mask, scale=sample.kwargs["scale"])
    return exact.transpose(1, 2).to(sample.input.dtype)


def upper_left(sample: SampleInput) -> torch.Tensor:
    return torch.ones(sample.input.shape[1], sample.args[0].shape[1], dtype=torch.bool).tril()


def lower_right(sample: SampleInput) -> torch.Tensor:
    queries, keys = sample.input.shape[1], sample.args[0].shape[1]
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


def jiterated(formula: Callable[..., torch.Tensor]) -> Callable[[SampleInput], torch.Tensor]:
    """A kernel given as C++ text, by the same formula in Python."""

    def reference(sample: SampleInput) -> torch.Tensor:
        dtype = sample.input.dtype
        wide = WIDE.get(dtype, dtype)
        extra = [torch.tensor(value).to(dtype).to(wide) for value in sample.kwargs.values()]
        return formula(*(t.to(wide) for t in (sample.input, *sample.args)), *extra).to(dtype)

    return reference


WIDE = {
    torch.bool: torch.int64,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}

REFERENCES: dict[str, Callable[[SampleInput], torch.Tensor | None]] = {
    "torch.ops.aten._flash_attention_forward": flash_attention,
    "torch.ops.aten._efficient_attention_forward": efficient_attention,
    "jiterator_unary": jiterated(lambda x: x * x + x),
    "jiterator_binary": jiterated(lambda x, y, alpha=1: x + alpha * y),
    "jiterator_binary_return_by_ref": jiterated(lambda x, y: x + y),
    "jiterator_2inputs_2outputs": jiterated(lambda x, y: x + y),
    "jiterator_4inputs_with_extra_args": jiterated(
        lambda a, b, c, d, alpha=1, beta=1: alpha * a + beta * b + c + d
    ),
}
